import pytest
import torch
from harness import guarded, seeded

import gdn_ops
from gdn_ops import reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
HEADS = [(2, 4, 16, 16), (1, 1, 128, 128), (3, 9, 8, 12), (2, 2, 1, 3), (1, 4, 64, 96), (2, 16, 32, 8), (1, 3, 100, 7)]


def check(mixed, ba, *heads):
    got = gdn_ops.split_qkvzba(mixed, ba, *heads)
    for g, w in zip(got, reference.split_qkvzba(mixed, ba, *heads), strict=True):
        assert g.is_contiguous() and g.dtype == w.dtype and torch.equal(g, w)
    return got


def rows(T, width, device, dtype=torch.bfloat16, seed=1):
    return guarded(torch.randn(T, width, generator=seeded(seed)).to(dtype), device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_values(backend, heads, interleaved, dtype):
    """One row, two rows, and b, a in fp32; few tokens and more than a block takes."""
    H, HV, K, V = heads
    wide = 2 * H * K + 2 * HV * V
    for T in (1, 7, 33):
        mixed, ba = rows(T, wide, backend.device, dtype), rows(T, 2 * HV, backend.device, dtype)
        check(mixed, ba, *heads, interleaved)
        check(mixed, ba.float(), *heads, interleaved)
        check(torch.cat([mixed, ba], 1), None, *heads, interleaved)


def test_orders_of_qwen3_next(backend):
    """Numbers that name themselves: head * 1000 + part * 100 + column, parts q k v z b a = 0 .. 5."""
    H, r, K, V = 2, 2, 3, 2
    part = lambda h, p, n: torch.arange(n) + 1000.0 * h + 100 * p  # noqa: E731
    mixed = torch.cat([part(h, p, n) for h in range(H) for p, n in enumerate((K, K, r * V, r * V))])[None]
    ba = torch.cat([part(h, p, r) for h in range(H) for p in (4, 5)])[None]
    qkv, z, b, a = check(mixed.to(backend.device), ba.to(backend.device), H, H * r, K, V, True)
    assert qkv[0].tolist() == [0, 1, 2, 1000, 1001, 1002, 100, 101, 102, 1100, 1101, 1102, 200, 201, 202, 203, 1200, 1201, 1202, 1203]
    assert z[0].tolist() == [[300, 301], [302, 303], [1300, 1301], [1302, 1303]]
    assert b[0].tolist() == [400, 401, 1400, 1401] and a[0].tolist() == [500, 501, 1500, 1501]


@pytest.mark.parametrize("start", [0, 8, 4, 2, 1])
@pytest.mark.parametrize("interleaved", [False, True])
def test_column_slices(backend, interleaved, start):
    """Rows that start on 16, 16, 8, 4 and 2 bytes, cut from NaN."""
    buffer = torch.full((5, 312), float("nan"), dtype=torch.bfloat16, device=backend.device)
    width = 2 * 2 * 16 + 2 * 4 * 16 + 8
    view = buffer[:, start : start + width]
    view.copy_(torch.randn(5, width, generator=seeded(2)))
    check(view, None, 2, 4, 16, 16, interleaved)
    check(view[:, :-8], view[:, -8:], 2, 4, 16, 16, interleaved)
    check(view[3:4], None, 2, 4, 16, 16, interleaved)


def test_nothing(backend):
    x = torch.zeros(0, 100, device=backend.device)
    got = gdn_ops.split_qkvzba(x[:, :96], x[:, :4], 1, 2, 16, 16)
    assert [tuple(t.shape) for t in got] == [(0, 64), (0, 2, 16), (0, 2), (0, 2)]


def test_refusals(backend):
    x = torch.zeros(3, 100, device=backend.device)
    mixed, ba = x[:, :96], x[:, 96:]
    heads = (1, 2, 16, 16)
    cases = [
        ((mixed, None, *heads), r"gdn.split_qkvzba: mixed: expected shape \[any, 100\], got \[3, 96\]"),
        ((x, ba, *heads), r"mixed: expected shape \[any, 96\], got \[3, 100\]"),
        ((mixed, ba[:2], *heads), r"ba: expected shape \[3, 4\], got \[2, 4\]"),
        ((mixed, ba.bfloat16(), *heads), "ba: expected fp32, got bf16"),
        ((mixed.double(), ba, *heads), "mixed: expected bf16 or fp16 or fp32, got another dtype"),
        ((x.new_zeros(96, 3).t(), ba, *heads), "mixed: expected unit stride in the last dimension, got stride 3"),
        ((mixed, ba, 2, 3, 16, 16), "HV: expected a multiple of H = 2 heads, got 3"),
        ((mixed, ba, 0, 2, 16, 16), "HV: expected a multiple of H = 0 heads, got 2"),
        ((mixed, ba, 1, 2, 300, 0), "K: expected a head size of 1 to 256, got 300; V: expected a head size of 1 to 256, got 0"),
        ((mixed, ba.clone().requires_grad_(), *heads), "ba: expected no gradient"),
    ]  # fmt: skip
    for args, text in cases:
        with pytest.raises(RuntimeError, match=text):
            gdn_ops.split_qkvzba(*args)
