"""A whole layer's prefill against float64 and against the single ops."""

import pytest
import torch
from backends import Backend
from fresh import copy, same
from harness import assert_close
from samples_layer import LAYER, prefill

import gdn_ops
from gdn_ops import reference

OP = torch.ops.gdn.gdn_prefill
# bf16 results of the convolution, the rule and the norm, rounded one after another: sqrt(3) * 2^-9 * 1.5 and the rule's 6e-3.
RMS = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}
BUILDS = [*LAYER["gdn_prefill"], prefill(packed=False), prefill(packed=False, one_row=True, v_first=False)]
SAMPLES = pytest.mark.parametrize("build", BUILDS, ids=range(len(BUILDS)))


def composed(mixed_qkvz, ba, conv_states, ssm_pool, cache_indices, has_initial_state, cu_seqlens, conv_weight, conv_bias, A_log, dt_bias,
             norm_weight, interleaved=False, state_v_first=False, out_scale=None, checkpoint_every=64, ssm_checkpoints=None,
             conv_checkpoints=None, checkpoint_indices=None, prefix_lens=None, ssm_indices=None, write_state=True, pool_scale=None,
             rounding_seed=None):  # fmt: skip
    """The single ops, on copies of what a projection gives."""
    HV, (K, V) = len(A_log), ssm_pool.shape[:1:-1] if state_v_first else ssm_pool.shape[2:]
    H = (len(conv_weight) - HV * V) // (2 * K)
    qkv, z, b, a = gdn_ops.split_qkvzba(mixed_qkvz, ba, H, HV, K, V, interleaved)
    ssm_indices = cache_indices if ssm_indices is None else ssm_indices
    cache_indices, ssm_indices = (torch.where((cache_indices < 0) | (ssm_indices < 0), -1, t) for t in (cache_indices, ssm_indices))
    conv_slots = cache_indices
    if not write_state:  # states of their own, which are written
        conv_states, conv_slots = conv_states[cache_indices], torch.arange(len(cache_indices), device=cache_indices.device)
    kept = dict(checkpoint_every=checkpoint_every, checkpoint_indices=checkpoint_indices, prefix_lens=prefix_lens)
    y = gdn_ops.causal_conv1d_fn(
        qkv, conv_weight, conv_bias, conv_states, cu_seqlens, conv_slots, has_initial_state, 1,
        **(dict(checkpoints=conv_checkpoints) | kept if conv_checkpoints is not None else {}),
    )  # fmt: skip
    q, k, v = (x.unflatten(1, (n, -1))[None] for x, n in zip(y.split([H * K, H * K, HV * V], 1), (H, H, HV)))
    g, beta = gdn_ops.fused_gdn_gating(A_log, a, b, dt_bias)
    o = gdn_ops.chunk_gated_delta_rule_update(
        q, k, v, g[None], beta[None], ssm_pool, ssm_indices, has_initial_state, cu_seqlens, None, True, state_v_first,
        write_state, ssm_checkpoints, pool_scale=pool_scale, rounding_seed=rounding_seed, **kept,
    )  # fmt: skip
    return torch.ops.gdn.gated_rmsnorm(o[0], norm_weight, z, out_scale=out_scale)


@SAMPLES
def test_values(native_backend, build):
    args = build(native_backend.device)
    want_y, *want = reference.gdn_prefill(**args)
    y = OP(**args)
    got = [args["conv_states"], args["ssm_pool"], args.get("ssm_checkpoints"), args.get("conv_checkpoints")]
    if y.dtype == torch.float8_e4m3fn:
        assert_close(y.float(), want_y, 4e-2)  # three bits
    else:
        assert_close(y, want_y, RMS[y.dtype], what="y")
    for name, g, w in zip(("conv_states", "ssm_pool", "ssm_checkpoints", "conv_checkpoints"), got, want):
        if g is not None and g.dtype == torch.float8_e4m3fn:
            assert_close(g.float() * args["pool_scale"][:, None, None], w, 4e-2, what=name)
        elif g is not None:
            assert_close(g, w, RMS[args["mixed_qkvz"].dtype], what=name)
    assert args["cu_seqlens"] is None or not y.float()[137:].any()


@SAMPLES
def test_is_the_single_ops(native_backend, build):
    """Bit for bit, in results and in everything that is updated."""
    args = build(native_backend.device)
    theirs = copy(args)
    y, want = OP(**args), composed(**theirs)
    assert same(y, want)
    assert [n for n, t in args.items() if isinstance(t, torch.Tensor) and not same(t, theirs[n])] == []


@pytest.mark.parametrize("interleaved", [False, True])
def test_launches(interleaved):
    """On the path a GPU takes: convolution, gates, two kernels of the rule, norm."""
    with Backend("interpreter") as backend:
        backend.count_only = True
        OP(**prefill(interleaved=interleaved, v_first=True)("cpu"))
    kernels = [label.split("-")[0] for label in backend.launches]
    assert kernels == ["causal_conv1d", "fused_gdn_gating", "chunk_prep", "chunk_rec", "gated_rmsnorm"]


def test_one_sequence_without_offsets(native_backend):
    args = prefill()(native_backend.device)
    args |= dict(cu_seqlens=None, cache_indices=args["cache_indices"][:1], has_initial_state=args["has_initial_state"][:1])
    theirs = copy(args) | dict(cu_seqlens=torch.tensor([0, len(args["mixed_qkvz"])], device=native_backend.device))
    assert same(OP(**args), OP(**theirs)) and same(args["ssm_pool"], theirs["ssm_pool"])


def test_pools_of_two_sizes(native_backend):
    """A slot that only the larger pool has is padding in both."""
    for short in ("conv_states", "ssm_pool"):
        args = prefill()(native_backend.device)
        args[short] = args[short][:7]  # row 0 has slot 7
        theirs = copy(args) | dict(cache_indices=torch.where(args["cache_indices"] == 7, -1, args["cache_indices"]))
        assert same(OP(**args), OP(**theirs))
        assert all(same(args[n], theirs[n]) for n in ("conv_states", "ssm_pool"))


def test_separate_slots(native_backend):
    args = prefill()(native_backend.device)
    theirs = copy(args)
    args["ssm_indices"] = args["cache_indices"] - 1
    y, want = OP(**args), OP(**theirs)
    assert not same(y, want) and same(args["conv_states"], theirs["conv_states"])


REFUSALS = {
    "mixed_qkvz: expected rows": lambda x: dict(mixed_qkvz=x["mixed_qkvz"][:, :-1]),
    "mixed_qkvz: expected two dimensions": lambda x: dict(mixed_qkvz=x["mixed_qkvz"][None], ba=x["ba"][None]),
    "ba: expected": lambda x: dict(ba=x["ba"][:, :-1]),
    "ba: expected a tensor with interleaved": lambda x: dict(ba=None, interleaved=True),
    "conv_weight: expected 2 ": lambda x: dict(conv_weight=x["conv_weight"][:-1]),
    "conv_weight: expected width 2, 3 or 4": lambda x: dict(conv_weight=x["conv_weight"].repeat(1, 2)),
    "conv_states: expected": lambda x: dict(conv_states=x["conv_states"][..., :2]),
    "ssm_pool: expected": lambda x: dict(ssm_pool=x["ssm_pool"][:, :-1]),
    "A_log: expected": lambda x: dict(A_log=x["A_log"].double()),
    "dt_bias: expected": lambda x: dict(dt_bias=x["dt_bias"][:-1]),
    "norm_weight: expected": lambda x: dict(norm_weight=x["norm_weight"][:-1]),
    "cache_indices: expected": lambda x: dict(cache_indices=x["cache_indices"][:-1]),
    "has_initial_state: expected": lambda x: dict(has_initial_state=x["has_initial_state"].int()),
    "activation: expected": lambda x: dict(activation=2),
    "norm_activation: expected": lambda x: dict(norm_activation=3),
    "out_scale: expected": lambda x: dict(out_scale=torch.ones(2)),
    "prefix_lens: expected": lambda x: dict(prefix_lens=x["cache_indices"][:-1]),
    "conv_checkpoints: expected with": lambda x: dict(ssm_checkpoints=x["ssm_pool"]),
    "ssm_checkpoints: expected a tensor with checkpoint_indices": lambda x: dict(checkpoint_indices=x["cache_indices"][:, None]),
}


@pytest.mark.parametrize("text", REFUSALS)
def test_refusals(text):
    args = prefill()("cpu")
    args |= REFUSALS[text](args)
    before = copy(args)
    with pytest.raises(RuntimeError, match=f"gdn.gdn_prefill: (.*; )?{text}"):
        OP(**args)
    assert all(same(t, before[n]) for n, t in args.items() if isinstance(t, torch.Tensor))
