"""copy_slots and zero_slots."""

import pytest
import torch
from pools import LAYOUTS, make_pool

import gdn_ops
from gdn_ops import reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn]
per_layout = pytest.mark.parametrize("layout", LAYOUTS)


def check_copy(pool, src, dst, **options):
    want = reference.copy_slots(pool.view, src, dst, **options)
    assert gdn_ops.copy_slots(pool.view, src, dst, **options) is None
    pool.check(want)


def check_zero(pool, indices, **options):
    want = reference.zero_slots(pool.view, indices, **options)
    assert gdn_ops.zero_slots(pool.view, indices, **options) is None
    pool.check(want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@per_layout
def test_values(backend, layout, dtype):
    pool = make_pool(layout, dtype, backend.device)
    src, dst = (torch.tensor(x, dtype=torch.int32, device=backend.device) for x in ([5, 0, 5, 3], [2, 1, 4, 3]))
    check_copy(pool, src, dst, slot_dim=pool.slot_dim)
    check_zero(make_pool(layout, dtype, backend.device), dst.long(), slot_dim=pool.slot_dim)


def test_fork(backend):
    """One source to many, sources repeated, some targets padded; targets of any strides."""
    pool = make_pool("states", torch.float32, backend.device, slots=12)
    src = torch.tensor([0, 11], device=backend.device)
    dst = torch.tensor([[1, 7], [2, -1], [3, 12], [4, 8]], dtype=torch.int32, device=backend.device).t()
    check_copy(pool, src, dst)
    check_copy(pool, src[:1].expand(3), torch.tensor([5, 6, 9], device=backend.device))
    check_copy(pool, src, dst[:, :0])


def test_masks(backend):
    pool = make_pool("states", torch.bfloat16, backend.device)
    flags = torch.tensor([[True, False]] * 2 + [[False, True]], device=backend.device)
    src, dst = (torch.tensor(x, device=backend.device) for x in ([0, 1, 2], [3, 4, 5]))
    for mask in (flags[:, 0], flags[:, 1], flags[0, :1].expand(3)):
        check_copy(pool, src, dst, mask=mask)
        check_zero(pool, dst, mask=mask)


def test_nan_stays_where_it_is(backend):
    """Bytes move as they are: NaN payloads, infinities, denormals; a slot of NaN that no row names harms none."""
    pool = make_pool("states", torch.float32, backend.device)
    bits = pool.view.view(torch.int32)
    bits[:, 1] = 0x7FC12345
    bits[:, 2, 0], bits[:, 2, 1:] = 1, -(2**23)
    src, dst = (torch.tensor(x, device=backend.device) for x in ([1, 2], [4, 5]))
    want = bits.clone()
    want[:, 4:6] = want[:, 1:3]
    gdn_ops.copy_slots(pool.view, src, dst)
    assert torch.equal(bits, want)
    check_zero(pool, src)


def test_nothing(backend):
    pool = make_pool("states", torch.float32, backend.device)
    none = torch.zeros(0, dtype=torch.int64, device=backend.device)
    check_copy(pool, none, none)
    check_zero(pool, none)
    slot = torch.zeros(1, dtype=torch.int64, device=backend.device)
    gdn_ops.copy_slots(pool.view[:, :0], slot, slot)
    gdn_ops.zero_slots(pool.view[:0], slot)
    gdn_ops.zero_slots(pool.view[..., :0], slot)


def test_refusals(backend):
    pool = torch.zeros(2, 5, 4, 3, device=backend.device)
    i = torch.zeros(3, dtype=torch.int64, device=backend.device)
    cases = [
        ((pool, i, i[:2]), {}, r"gdn.copy_slots: dst_indices: expected shape \[3\], got \[2\]"),
        ((pool, i, i.new_zeros(2, 4)), {}, r"dst_indices: expected shape \[3, any\], got \[2, 4\]"),
        ((pool, i[None], i), {}, r"src_indices: expected shape \[any\], got \[1, 3\]"),
        ((pool, i.float(), i), {}, "src_indices: expected int32 or int64, got fp32"),
        ((pool, i, i), dict(mask=i), "mask: expected bool, got int64"),
        ((pool, i, i), dict(mask=i[:2].bool()), r"mask: expected shape \[3\], got \[2\]"),
        ((pool, i, i), dict(slot_dim=2), r"slot_dim: expected 1 \(\[L, slots, ...\]\) or 0 \(\[slots, ...\]\), got 2"),
        ((pool[0, 0, 0], i, i), {}, r"pool: expected \[L, slots, ...\] with slots of up to 4 dimensions, got \[3\]"),
        ((pool[:, :, None, None, None], i, i), {}, "pool: expected .* slots of up to 4 dimensions"),
        ((pool.double(), i, i), {}, "pool: expected fp32 or bf16 or fp16 or fp8_e4m3, got another dtype"),
        ((pool[:, :1].expand(2, 5, 4, 3), i, i), {}, "pool: expected an element for every index"),
        ((pool.clone().requires_grad_(), i, i), {}, "pool: expected no gradient"),
    ]  # fmt: skip
    for args, options, text in cases:
        with pytest.raises(RuntimeError, match=text):
            gdn_ops.copy_slots(*args, **options)
        if args[2] is i and args[1].dim() == 1:
            with pytest.raises(RuntimeError, match=text.replace("copy_slots", "zero_slots").replace("src_", "")):
                gdn_ops.zero_slots(args[0], args[1], **options)
    assert not pool.any()
