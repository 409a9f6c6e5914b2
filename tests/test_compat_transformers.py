"""transformers' models with their Gated DeltaNet functions on gdn_ops against transformers' own torch path."""

import importlib

import pytest
import torch
from harness import assert_close, seeded

from gdn_ops.compat import transformers as gdn_transformers

pytest.importorskip("transformers")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SMALL = dict(
    vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
    linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=64, linear_value_head_dim=64, initializer_range=0.2,
)  # fmt: skip
FAMILIES = {
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", {}),
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", dict(num_experts=2, num_experts_per_tok=1, moe_intermediate_size=32, shared_expert_intermediate_size=32)),
}  # fmt: skip


def build(family, device="cpu", dtype=torch.float32, **more):
    config, model, extra = FAMILIES[family]
    module = importlib.import_module(f"transformers.models.{family}")
    torch.manual_seed(0)
    return getattr(module, model)(getattr(module, config)(**SMALL, **extra, **more)).eval().to(device, dtype)


def ids(*shape, device="cpu"):
    return torch.randint(0, 64, shape, generator=seeded(1)).to(device)


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # transformers' own convolution would round to 10 bits
    yield
    assert not gdn_transformers._originals, "a test left transformers patched"


@torch.inference_mode()
def both(model, run):
    """What ``run`` returns with transformers' functions and with ours."""
    own = run()
    with gdn_transformers.patched(model):
        return own, run()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", FAMILIES)
def test_generate(family, device):
    """Prefill over two chunks and ten cached steps: the same tokens and logits, in float32 (on CUDA by the token loop)."""
    model = build(family, device)
    prompt = ids(2, 70, device=device)
    args = dict(max_new_tokens=10, do_sample=False, return_dict_in_generate=True, output_logits=True, pad_token_id=0)
    own, ours = both(model, lambda: model.generate(prompt, attention_mask=torch.ones_like(prompt), **args))
    assert torch.equal(own.sequences, ours.sequences)
    assert_close(torch.stack(ours.logits), torch.stack(own.logits), 1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(device, dtype):
    """Both paths round at different places: each is as far from float32 as the other."""
    exact, model = build("qwen3_5", device), build("qwen3_5", device, dtype)
    prompt = ids(1, 200, device=device)
    with torch.inference_mode():
        want = exact(prompt).logits
    own, ours = both(model, lambda: model(prompt).logits)
    error = lambda x: ((x.float() - want).square().mean() / want.square().mean()).sqrt().item()  # noqa: E731
    assert error(ours) < 1.3 * error(own) + 1e-4


@pytest.mark.parametrize("T", [1, 2, 3, 4, 5])
def test_prompt_shorter_than_the_convolution(T):
    model = build("qwen3_5")
    own, ours = both(model, lambda: model.generate(ids(1, T), max_new_tokens=5, do_sample=False, pad_token_id=0))
    assert torch.equal(own, ours)


@pytest.mark.parametrize("device", DEVICES)
def test_prefill_in_pieces(device):
    """A cached prefill of several tokens takes the state in; the pieces are of odd lengths."""
    from transformers import DynamicCache

    model, prompt = build("qwen3_5", device), ids(2, 140, device=device)

    def run():
        cache = DynamicCache(config=model.config)
        return torch.cat([model(piece, past_key_values=cache, use_cache=True).logits for piece in prompt.split([66, 3, 1, 70], 1)], 1)

    own, ours = both(model, run)
    assert_close(ours, own, 1e-4)


def test_left_padding():
    model, prompt = build("qwen3_5"), ids(2, 20)
    mask = torch.ones_like(prompt)
    mask[0, :7] = 0
    own, ours = both(model, lambda: model.generate(prompt, attention_mask=mask, max_new_tokens=4, do_sample=False, pad_token_id=0))
    assert torch.equal(own, ours)


@pytest.mark.parametrize("device", DEVICES)
def test_packed_sequences(device):
    """Offsets keep the sequences of a packed row apart, in the convolution and in the rule (transformers' torch path
    ignores them)."""
    model, x = build("qwen3_5", device), torch.randn(1, 140, 64, generator=seeded(4)).to(device)
    layer = model.model.layers[0].linear_attn
    offsets = torch.tensor([0, 66, 67, 140], dtype=torch.int32, device=device)
    with torch.inference_mode(), gdn_transformers.patched(model):
        got = layer(x, cu_seq_lens_q=offsets, seq_idx=torch.zeros(1, 140, dtype=torch.int32, device=device))
        want = torch.cat([layer(piece) for piece in x.split([66, 1, 73], 1)], 1)
    assert_close(got, want, 1e-5)


def test_conv_update_shifts_the_whole_line():
    """State [B, D, W] of columns 1..4, weights 1, 10, 100, 1000, x = 5: the last three columns and x."""
    state = torch.tensor([[1.0, 2, 3, 4]] * 8).reshape(2, 4, 4)
    weight = torch.tensor([[1.0, 10, 100, 1000]] * 4)
    y = gdn_transformers.causal_conv1d_update(torch.full((2, 4, 1), 5.0), state, weight)
    assert torch.equal(y, torch.full((2, 4, 1), 5432.0))
    assert torch.equal(state, torch.tensor([[2.0, 3, 4, 5]] * 8).reshape(2, 4, 4))


def test_conv_result_is_token_major():
    """The layer slices q, k and v out of it: their rows must have unit stride, so that nothing is copied."""
    x = torch.randn(2, 33, 12, generator=seeded(2)).transpose(1, 2)
    y = gdn_transformers.causal_conv1d_fn(x, torch.randn(12, 4, generator=seeded(3)), activation="silu")
    assert y.shape == x.shape and y.transpose(1, 2).is_contiguous()


def test_patch_is_undone_and_nests():
    from transformers.models.qwen3_5 import modeling_qwen3_5 as module

    model = build("qwen3_5")
    own = module.torch_chunk_gated_delta_rule, module.Qwen3_5RMSNormGated.forward
    with gdn_transformers.patched(model):
        assert module.torch_chunk_gated_delta_rule is gdn_transformers.chunk_gated_delta_rule
        with gdn_transformers.patched(model):
            pass
        assert module.torch_chunk_gated_delta_rule is gdn_transformers.chunk_gated_delta_rule
    assert own == (module.torch_chunk_gated_delta_rule, module.Qwen3_5RMSNormGated.forward)
    assert len(gdn_transformers.patch()) >= 5 and gdn_transformers.patch(model) == []
    gdn_transformers.unpatch()
    assert own == (module.torch_chunk_gated_delta_rule, module.Qwen3_5RMSNormGated.forward)


def test_a_model_without_such_layers_is_refused():
    with pytest.raises(ValueError, match="no Gated DeltaNet layers known here in Linear"):
        gdn_transformers.patch(torch.nn.Linear(2, 2))


def test_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="activation: expected one of .*got 'relu'"):
        gdn_transformers.causal_conv1d_fn(torch.ones(1, 4, 4), torch.ones(4, 4), activation="relu")


def test_under_autograd_the_refusal_is_clear():
    model = build("qwen3_5")
    with gdn_transformers.patched(model), pytest.raises(RuntimeError, match="no backward"):
        model(ids(1, 5))


@pytest.mark.parametrize("device", DEVICES)
def test_compiled_model(device):
    """torch.compile of a patched model: one graph, the same logits."""
    model, prompt = build("qwen3_5", device), ids(1, 70, device=device)
    with torch.no_grad(), gdn_transformers.patched(model):
        want = model(prompt, use_cache=False).logits
        got = torch.compile(model, fullgraph=True, backend="aot_eager")(prompt, use_cache=False).logits
    assert_close(got, want, 1e-4)


@pytest.mark.gpu
def test_float32_on_cuda_takes_the_token_loop():
    q = torch.randn(1, 5, 2, 64, device="cuda")
    g = torch.zeros(1, 5, 2, device="cuda")
    o, state = gdn_transformers.chunk_gated_delta_rule(q, q, q, g, g + 0.5, use_qk_l2norm_in_kernel=True)
    assert o.dtype == torch.float32 and state is None
