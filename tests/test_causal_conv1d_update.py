import itertools

import pytest
import torch
from harness import assert_close, guarded, seeded

import gdn_ops
from gdn_ops import NONE, SILU, reference

RMS = {torch.float32: 2e-6, torch.bfloat16: 2.5e-3, torch.float16: 4e-4}  # rounding of the stored output
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
DECIMAL = torch.tensor([[1.0, 10, 100, 1000]])


def inputs(device, B=3, T=None, D=12, W=4, L=3, dtype=BF16, state=None, bias=None, seed=0):
    r = seeded(seed)
    x = torch.randn((B, D) if T is None else (B, T, D), generator=r).to(dtype)
    states = torch.randn(B + 2, D, L, generator=r).to(state or dtype)
    weight = torch.randn(D, W, generator=r).to(bias or dtype)
    bias = None if bias is None else guarded(torch.randn(D, generator=r).to(bias), device)
    return guarded(x, device), guarded(states, device), guarded(weight, device), bias


def check(x, states, weight, bias, activation=SILU, slots=None, min_slot=0):
    want, after = reference.causal_conv1d_update(x, states, weight, bias, activation, slots, min_slot=min_slot)
    before = states.clone()
    y = gdn_ops.causal_conv1d_update(x, states, weight, bias, activation, slots, min_slot=min_slot)
    assert y.dtype == x.dtype
    assert_close(y, want, RMS[x.dtype], what="y")
    assert torch.equal(states.cpu().double(), after)
    states.copy_(before)
    assert torch.equal(y, gdn_ops.causal_conv1d_update(x, states, weight, bias, activation, slots, min_slot=min_slot))
    return y


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("D", [64, 66, 65])
@pytest.mark.parametrize("W, L", [(2, 1), (2, 2), (3, 2), (4, 3), (4, 4), (4, 7)])
def test_values(backend, W, L, D, indexed):
    for dtype, bias in itertools.product(RMS, (None, FP32)):
        slots = torch.tensor([4, 0, 2], device=backend.device) if indexed else None
        for T in (None, 1, 2, 5):
            x, *rest = inputs(backend.device, T=T, D=D, W=W, L=L, dtype=dtype, bias=bias, state=bias)
            y = check(x if T is None else x.mT, *rest, slots=slots)
            assert (y if T is None else y.mT).is_contiguous()
            if T:
                assert check(x.mT.contiguous(), *rest, slots=slots).is_contiguous()


def test_long_state_without_slots(backend):
    """The last W - 1 columns count and the line shifts: leading columns would give 7321."""
    state = torch.arange(1.0, 7, device=backend.device).repeat(1, 1, 1)
    x, w = torch.full((1, 1), 7.0, device=backend.device), DECIMAL.to(backend.device)
    assert gdn_ops.causal_conv1d_update(x, state, w, activation=NONE).item() == 7654
    assert state[0, 0].tolist() == [2, 3, 4, 5, 6, 7]


def test_long_state_with_slots(backend):
    """The first W - 1 columns are the window; the others are not touched."""
    pool = torch.arange(1.0, 7, device=backend.device).repeat(3, 1, 1)
    x, w = torch.full((1, 1), 7.0, device=backend.device), DECIMAL.to(backend.device)
    slots = torch.tensor([1], device=backend.device)
    assert gdn_ops.causal_conv1d_update(x, pool, w, conv_state_indices=slots).item() == 7321
    assert pool[:, 0].tolist() == [[1, 2, 3, 4, 5, 6], [2, 3, 7, 4, 5, 6], [1, 2, 3, 4, 5, 6]]


def test_one_row_of_a_table(backend):
    """A view of one element may report any stride."""
    x, states, w, bias = inputs(backend.device, B=1)
    table = torch.tensor([[2, 99, 99, 99]], dtype=torch.int32, device=backend.device)
    check(x, states, w, bias, slots=table[:, 0])


@pytest.mark.parametrize("start", [0, 2, 3])
def test_strided_rows_and_pools(backend, start):
    """x a column slice among NaN; pools channel-last, sliced, one layer of many."""
    _, states, w, bias = inputs(backend.device, D=64, bias=FP32)
    x = torch.randn(3, 64, generator=seeded(4)).to(BF16).to(backend.device)
    slots = torch.tensor([4, 0, 2], device=backend.device)
    want_states = states.clone()
    want = check(x, want_states, w, bias, slots=slots)
    wide = torch.full((3, 197), float("nan"), dtype=BF16, device=backend.device)
    wide[:, start : start + 64] = x
    new = lambda *shape: torch.full(shape, 77.0, dtype=BF16, device=backend.device)  # noqa: E731
    for pool in (new(5, 3, 64).mT, new(5, 64, 8)[:, :, 2:5], new(2, 5, 64, 3)[1], new(5, 3, 67).mT[:, 3:], new(64, 5, 3).transpose(0, 1)):
        pool.copy_(states)
        y = gdn_ops.causal_conv1d_update(wide[:, start : start + 64], pool, w, bias, SILU, slots)
        assert torch.equal(y, want) and torch.equal(pool, want_states)
        assert (pool._base == 77).sum() == pool._base.numel() - pool.numel()


def test_token_by_token_is_one_call(backend):
    x, states, w, bias = inputs(backend.device, T=6, D=20, L=4, bias=FP32)
    one, steps = states.clone(), []
    for t in range(6):
        steps.append(gdn_ops.causal_conv1d_update(x[:, t], one, w, bias, SILU))
    y = gdn_ops.causal_conv1d_update(x.mT, states, w, bias, SILU)
    assert torch.equal(torch.stack(steps, 2), y) and torch.equal(one, states)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_steps_of_transformers(backend, dtype):
    """Its state holds W columns, of which W - 1 count, and starts with the last inputs of the prompt."""
    qwen = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
    x, states, w, _ = inputs("cpu", B=5, T=4, D=16, L=4, dtype=dtype)
    states, theirs = states[:5].to(backend.device), states[:5].clone()
    for t in range(4):
        want = qwen.causal_conv1d_update(x[:, t, :, None], theirs, w, None, "silu")
        step = x[:, t : t + 1].mT.to(backend.device)
        assert_close(gdn_ops.causal_conv1d_update(step, states, w.to(backend.device), None, SILU), want, 2 * RMS[dtype] + 2e-3)
        assert torch.equal(states.cpu(), theirs)


def test_nothing(backend):
    x, states, w, _ = inputs(backend.device)
    assert gdn_ops.causal_conv1d_update(x[:0], states, w).shape == (0, 12)
    assert gdn_ops.causal_conv1d_update(x.new_zeros(3, 12, 0), states, w).shape == (3, 12, 0)


def test_refusals(backend):
    x, states, w, _ = inputs(backend.device, dtype=FP32)
    slots, drafts, windows = torch.tensor([0, 1, 2], device=backend.device), x[:, :, None].repeat(1, 1, 3), x.new_zeros(3, 1, 12, 3)
    cases = [
        ((x[0], states, w), {}, r"gdn.causal_conv1d_update: x: expected \[B, D\] or \[B, D, T\], got \[12\]"),
        ((x, states[:, :4], w), {}, r"conv_state: expected shape \[any, 12, any\], got \[5, 4, 3\]"),
        ((x, states[:, :, :2], w), {}, r"conv_state: expected at least W - 1 columns, got \[5, 12, 2\]"),
        ((x, states[:2], w), {}, r"conv_state: expected a state for every sequence, got \[2, 12, 3\]"),
        ((x, states.bfloat16(), w), {}, "conv_state: expected fp32, got bf16"),
        ((x, states[:1].expand(5, 12, 3), w), {}, "conv_state: expected an element for every index"),
        ((x, states, w[:, :1]), {}, "weight: expected width 2, 3 or 4, got 1"),
        ((x, states, w[:5]), {}, r"weight: expected shape \[12, any\], got \[5, 4\]"),
        ((x, states, w, w[0]), {}, r"bias: expected shape \[12\], got \[4\]"),
        ((x, states, w), dict(activation=2), r"activation: expected 0 \(none\) or 1 \(silu\), got 2"),
        ((x, states, w), dict(conv_state_indices=slots[:2]), r"conv_state_indices: expected shape \[3\], got \[2\]"),
        ((x, states, w), dict(conv_state_indices=slots.float()), "conv_state_indices: expected int32 or int64, got fp32"),
        ((x, states.clone().requires_grad_(), w), {}, "conv_state: expected no gradient"),
        ((x[:, :, None, None], states, w), {}, r"x: expected \[B, D\] or \[B, D, T\]"),
        ((x[:, :, None], states, w), dict(query_start_loc=slots), r"x: expected \[T, D\] with query_start_loc, got \[3, 12, 1\]"),
        ((x, states, w), dict(query_start_loc=slots, conv_state_indices=slots), r"conv_state_indices: expected shape \[2\], got \[3\]"),
        ((x, states, w), dict(num_accepted_tokens=slots[:2]), r"num_accepted_tokens: expected shape \[3\], got \[2\]"),
        ((drafts, states, w), dict(num_accepted_tokens=slots), r"conv_state: expected at least W - 2 \+ T columns with num_acc.*5, 12, 3"),
        ((x, states, w), dict(num_accepted_tokens=slots, cache_seqlens=slots), "cache_seqlens: expected None with num_accepted_tokens"),
        ((x, states, w), dict(cache_seqlens=slots.float()), "cache_seqlens: expected int32 or int64, got fp32"),
        ((x, states, w), dict(intermediate_windows=states), r"intermediate_windows: expected shape \[any, any, 12, 3\], got \[5, 12, 3\]"),
        ((drafts, states, w), dict(intermediate_windows=windows), r"intermediate_windows: expected a window for every token of a row"),
        ((x, states, w), dict(intermediate_windows=windows[:2]), "intermediate_windows: expected windows for every row"),
        ((x, states, w), dict(intermediate_windows=windows.half()), "intermediate_windows: expected fp32, got fp16"),
        ((x, states, w), dict(intermediate_windows=windows[:1].expand(3, 1, 12, 3)), "intermediate_windows: expected an element for every"),
        ((x, states, w), dict(intermediate_indices=slots), "intermediate_indices: expected None without intermediate_windows"),
        ((x, states, w), dict(parents=slots[:, None]), "intermediate_windows: expected a tensor with parents"),
        ((x, states, w), dict(parents=slots[:, None][:, :0], intermediate_windows=windows), "parents: expected a parent for every token"),
        ((x, states, w), dict(parents=slots[:, None], intermediate_windows=windows, out=x), "out: expected memory apart from x"),
        ((x, states, w), dict(out=x[:2]), r"out: expected the shape of the result, got \[2, 12\]"),
        ((x, states, w), dict(H=2), "H: expected 0, or key heads with K > 0, got 2"),
        ((x, states, w), dict(H=2, K=2), r"x: expected columns \[q K \| k K \| v \| z\] for each of H groups, got \[3, 12\]"),
        ((x, states, w), dict(H=5, K=1), "weight: expected "),
    ]  # fmt: skip
    before = states.clone()
    for args, options, text in cases:
        with pytest.raises(RuntimeError, match=text):
            gdn_ops.causal_conv1d_update(*args, **options)
    assert torch.equal(states, before)
