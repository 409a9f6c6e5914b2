"""gather_states, scatter_states and scatter_accepted_states."""

import itertools

import pytest
import torch
from harness import guarded, seeded
from pools import LAYOUTS, make_pool, same_bits

import gdn_ops
from gdn_ops import reference

FP32, BF16, FP16, FP8 = torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn
CASTS = [*itertools.product((FP32, BF16, FP16), repeat=2), (FP8, FP8)]
per_cast = pytest.mark.parametrize("source, target", CASTS, ids=lambda x: str(x).removeprefix("torch."))
per_layout = pytest.mark.parametrize("layout", LAYOUTS)


def check_gather(pool, indices, *args, **options):
    got = gdn_ops.gather_states(pool.view, indices, *args, **options)
    want = reference.gather_states(pool.view, indices, *args, **options)
    assert got.is_contiguous() and same_bits(got, want)
    assert same_bits(got, gdn_ops.gather_states(pool.view, indices, *args, **options))
    return got


def check_scatter(op, pool, *args, **options):
    want = getattr(reference, op)(pool.view, *args, **options)
    assert getattr(gdn_ops, op)(pool.view, *args, **options) is None
    pool.check(want)


def states_like(pool, *rows, dtype, device, layers_last=False, odd=False):
    """[L, rows..., slot]: contiguous among NaN, or with other strides than the pool's."""
    rest = pool.view.shape[pool.slot_dim + 1 :]
    x = torch.randn(*pool.view.shape[: pool.slot_dim], *rows, *rest, generator=seeded(5)) * 3
    if dtype == FP8:
        return x.to(dtype).to(device)
    if odd:
        return guarded(x.flip(-1).to(dtype).movedim(0, -1), device).movedim(-1, 0)
    return guarded(x.to(dtype), device)


@per_cast
@per_layout
def test_values(backend, layout, source, target):
    pool = make_pool(layout, source, backend.device)
    indices = torch.tensor([5, 0, -1, 3, 5], dtype=torch.int32, device=backend.device)
    has = torch.tensor([True, True, True, False, True], device=backend.device)
    check_gather(pool, indices, None, target, slot_dim=pool.slot_dim)
    check_gather(pool, indices.long(), has, target, slot_dim=pool.slot_dim)
    pool, indices = make_pool(layout, target, backend.device), indices[:4]
    for odd in (False, True):
        states = states_like(pool, 4, dtype=source, device=backend.device, odd=odd)
        check_scatter("scatter_states", pool, states, indices, slot_dim=pool.slot_dim)
        check_scatter("scatter_states", pool, states, indices.long(), has[:4], slot_dim=pool.slot_dim)
        steps = states_like(pool, 5, 3, dtype=source, device=backend.device, odd=odd)
        accepted = torch.tensor([3, 1, 2, 2], dtype=torch.int32, device=backend.device)
        check_scatter("scatter_accepted_states", pool, steps, indices, accepted, slot_dim=pool.slot_dim)
        rows = torch.tensor([4, 0, 1, 4], device=backend.device)
        check_scatter("scatter_accepted_states", pool, steps, indices.long(), accepted.long(), rows, slot_dim=pool.slot_dim)


def test_overlapping_windows(backend):
    """Intermediate windows as views of one line of inputs each, as SGLang keeps them."""
    pool = make_pool("history", BF16, backend.device)  # [L, slots, D, 3]
    line = torch.randn(2, 6, 64, 3 + 4, generator=seeded(6)).to(BF16).to(backend.device)
    windows = line.unfold(3, 3, 1).permute(0, 1, 3, 2, 4)  # [L, rows, S', D, 3]
    slots, counts = (torch.tensor(x, device=backend.device) for x in ([4, 2, 0], [5, 1, 3]))
    check_scatter("scatter_accepted_states", pool, windows, slots, counts)
    gdn_ops.scatter_accepted_states(pool.view, windows, slots, counts)
    assert torch.equal(pool.view[:, 4], line[:, 0, :, 4:7])


def test_nan_and_zeros(backend):
    """Rows without a state are zeros whatever the slot holds, and NaN moves where it is asked to."""
    for dtype in (FP32, BF16):
        pool = make_pool("states", dtype, backend.device)
        pool.view[:, ::2] = float("nan")
        indices = torch.tensor([0, 1, 2, -1], device=backend.device)
        has = torch.tensor([False, True, True, True], device=backend.device)
        got = check_gather(pool, indices, has, FP32)
        assert not got[:, 0].any() and torch.isfinite(got[:, 1]).all() and got[:, 2].isnan().all() and not got[:, 3].any()


def test_fp16_saturates(backend):
    values = [1e5, -1e5, 65504, 65519, 7e4, float("inf"), -float("inf"), float("nan")]
    for dtype, width in itertools.product((FP32, BF16), (8, 7)):
        pool = torch.tensor(values, dtype=dtype, device=backend.device)[None, None, :width].contiguous()
        index = torch.zeros(1, dtype=torch.int64, device=backend.device)
        got = gdn_ops.gather_states(pool, index, None, FP16)
        assert got[0, 0, :7].tolist() == [65504, -65504, *([65504] * 4), -65504]
        assert width < 8 or got[0, 0, 7].isnan()
        target = torch.zeros_like(pool, dtype=FP16)
        gdn_ops.scatter_states(target, pool, index)
        assert same_bits(target, got)
        assert torch.isinf(gdn_ops.gather_states(pool, index, None, BF16)[0, 0, 5:7]).all()


def test_nothing(backend):
    pool = make_pool("states", FP32, backend.device)
    none = torch.zeros(0, dtype=torch.int32, device=backend.device)
    assert check_gather(pool, none).shape == (2, 0, 2, 16, 32)
    check_scatter("scatter_states", pool, pool.view[:, :0], none)
    check_scatter("scatter_accepted_states", pool, pool.view[:, :0, None], none, none)
    one = none.new_zeros(1)
    assert not gdn_ops.gather_states(pool.view[:, :0], one).any()
    check_scatter("scatter_accepted_states", pool, pool.view.new_zeros(2, 1, 0, 2, 16, 32), one, one + 1)


def test_refusals(backend):
    pool = torch.zeros(2, 5, 4, 3, device=backend.device)
    i, x = torch.zeros(3, dtype=torch.int64, device=backend.device), torch.ones(2, 3, 4, 3, device=backend.device)
    steps, eight = x[:, :, None], pool.to(FP8)
    cases = [
        ("gather_states", (pool, i.float()), r"gdn.gather_states: indices: expected int32 or int64, got fp32"),
        ("gather_states", (pool, i, i), "has_initial_state: expected bool, got int64"),
        ("gather_states", (pool, i, None, FP8), "output_dtype: expected fp32, bf16 or fp16, got fp8_e4m3"),
        ("gather_states", (pool, i, None, torch.int32), "output_dtype: expected fp32, bf16 or fp16, got int32"),
        ("gather_states", (eight, i, None, BF16), r"output_dtype: expected None or fp8_e4m3 like the pool \(its scale is not known\), got bf16"),
        ("gather_states", (pool, i, None, None, 0, 3), "slot_dim: expected"),
        ("scatter_states", (pool, x[:, :2], i), r"states: expected a state for every index, got \[2, 2, 4, 3\]"),
        ("scatter_states", (pool, x[:1], i), r"states: expected rows of the slots of pool \[2, 5, 4, 3\], got \[1, 3, 4, 3\]"),
        ("scatter_states", (pool, x[..., :2], i), r"states: expected rows of the slots of pool \[2, 5, 4, 3\], got \[2, 3, 4, 2\]"),
        ("scatter_states", (eight, x, i), "states: expected one dtype on both sides where one is fp8"),
        ("scatter_states", (pool, x.double(), i), "states: expected .*, got another dtype"),
        ("scatter_states", (pool[:, :1].expand(2, 5, 4, 3), x, i), "pool: expected an element for every index"),
        ("scatter_states", (pool, x.clone().requires_grad_(), i), "states: expected no gradient"),
        ("scatter_accepted_states", (pool, x, i, i), r"intermediate_states: expected rows of steps of the slots of pool \[2, 5, 4, 3\], got"),
        ("scatter_accepted_states", (pool, steps[:, :2], i, i), "intermediate_states: expected a row for every index"),
        ("scatter_accepted_states", (pool, steps, i, i[:2]), r"num_accepted_tokens: expected shape \[3\], got \[2\]"),
        ("scatter_accepted_states", (pool, steps, i, i, i[:2]), r"intermediate_indices: expected shape \[3\], got \[2\]"),
        ("scatter_accepted_states", (pool, steps.clone().requires_grad_(), i, i), "intermediate_states: expected no gradient"),
    ]  # fmt: skip
    for op, args, text in cases:
        with pytest.raises(RuntimeError, match=text):
            getattr(gdn_ops, op)(*args)
    assert not pool.any()
