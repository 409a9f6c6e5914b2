import pytest
import torch
from harness import assert_close, guarded, seeded

import gdn_ops
from gdn_ops import reference

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
RMS = 1e-6  # fp32 sums of up to 128 terms


def gates(*shape, dtype=FP32, device="cpu", seed=1):
    return guarded(-torch.rand(*shape, generator=seeded(seed)).to(dtype), device)


def offsets(lengths, before=0, device="cpu", dtype=torch.int64):
    return guarded((torch.tensor((0, *lengths)).cumsum(0) + before).to(dtype), device)


@pytest.mark.parametrize("C", [16, 32, 64, 128])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("shape", [(2, 130, 3), (1, 40, 2, 48)], ids=["scalar", "vector"])
def test_dense(backend, C, reverse, shape):
    g = gates(*shape, device=backend.device)
    y = gdn_ops.chunk_local_cumsum(g, C, reverse)
    assert y.dtype == FP32 and y.is_contiguous()
    assert_close(y, reference.chunk_local_cumsum(g, C, reverse), RMS)
    assert torch.equal(y, gdn_ops.chunk_local_cumsum(g, C, reverse))


@pytest.mark.parametrize("C", [16, 64, 128])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_packed(backend, C, reverse, index):
    lengths = (0, 1, 15, 0, 63, 64, 65, 0)
    g, cu = gates(1, 220, 2, device=backend.device), offsets(lengths, 3, backend.device, index)
    y = gdn_ops.chunk_local_cumsum(g, C, reverse, None, cu)
    assert_close(y, reference.chunk_local_cumsum(g, C, reverse, None, cu), RMS)
    assert not y[:, :3].any() and not y[:, 211:].any()


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
@pytest.mark.parametrize("scale", [None, 1.4426950408889634, -0.5, 0.0])
def test_dtypes_and_scale(backend, dtype, scale):
    g = gates(1, 70, 5, dtype=dtype, device=backend.device)
    assert_close(gdn_ops.chunk_local_cumsum(g, 64, scale=scale), reference.chunk_local_cumsum(g, 64, scale=scale), RMS)


def test_sums_are_not_rounded(backend):
    """bf16 gates of 1 and 2^-8: a bf16 sum would lose every small one."""
    g = torch.full((1, 64, 1), 2.0**-8, dtype=BF16, device=backend.device)
    g[:, 0] = 1
    want = 1 + torch.arange(64.0) * 2**-8
    assert torch.equal(gdn_ops.chunk_local_cumsum(g, 64)[0, :, 0].cpu(), want)


@pytest.mark.parametrize("H, S", [(1, None), (1, 1), (33, None), (3, 1), (2, 33)], ids=str)
def test_columns(backend, H, S):
    g = gates(*(1, 20, H) if S is None else (1, 20, H, S), device=backend.device)
    assert_close(gdn_ops.chunk_local_cumsum(g, 16), reference.chunk_local_cumsum(g, 16), RMS)


@pytest.mark.parametrize("T, lengths", [(0, None), (0, ()), (5, ()), (0, (0, 0)), (5, (0, 0))], ids=str)
def test_nothing_to_do(backend, T, lengths):
    cu = None if lengths is None else offsets(lengths, device=backend.device)
    y = gdn_ops.chunk_local_cumsum(torch.full((1, T, 2), float("nan"), device=backend.device), 64, cu_seqlens=cu)
    assert y.shape == (1, T, 2) and not y.any()


def test_no_columns(backend):
    assert gdn_ops.chunk_local_cumsum(torch.zeros(1, 5, 2, 0, device=backend.device), 64).shape == (1, 5, 2, 0)


@pytest.mark.parametrize(
    "change, text",
    [
        (dict(g=torch.zeros(5, 2)), "g: expected shape [B, T, H] or [B, T, H, S], got [5, 2]"),
        (dict(g=torch.zeros(1, 5, 2).double()), "g: expected bf16 or fp16 or fp32, got another dtype"),
        (dict(g=torch.zeros(1, 5, 2, requires_grad=True)), "g: expected no gradient"),
        (dict(chunk_size=48), "chunk_size: expected 16, 32, 64 or 128, got 48"),
        (dict(cu_seqlens=torch.tensor([0.0, 5])), "cu_seqlens: expected int32 or int64, got fp32"),
        (dict(g=torch.zeros(2, 5, 2), cu_seqlens=torch.tensor([0, 5])), "cu_seqlens: expected B = 1 (packed tokens) with it, got B = 2"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_refusals(change, text):
    with pytest.raises(RuntimeError) as e:
        gdn_ops.chunk_local_cumsum(**{"g": torch.zeros(1, 5, 2), "chunk_size": 64, **change})
    assert "gdn.chunk_local_cumsum: " in str(e.value) and text in str(e.value)
