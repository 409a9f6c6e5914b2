import pytest
import torch
import torch.nn.functional as F
from harness import assert_close, guarded, seeded

import gdn_ops
from gdn_ops import reference

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
RMS = {FP32: 1e-6, BF16: 2.5e-3, FP16: 4e-4}  # fp32 sums of up to 64 terms, or the rounding of the stored output


def offsets(lengths, before=0, device="cpu", dtype=torch.int64):
    return (torch.tensor((0, *lengths)).cumsum(0) + before).to(dtype).to(device)


def matrices(B, T, H, C, cu=None, seed=1, keys=None, beta=None, dtype=FP32, device="cpu"):
    """A of unit keys and beta in (0, 1); NaN wherever the op must not read."""
    gen = seeded(seed)
    k = F.normalize(torch.randn(B, T, H, 24, generator=gen, dtype=torch.float64), dim=-1) if keys is None else keys
    beta = torch.rand(B, T, H, generator=gen, dtype=torch.float64) if beta is None else beta
    A = torch.full((B, T, H, C), float("nan"), dtype=torch.float64)
    for _, b, s, e in reference.chunks(B, T, cu, C):
        b_k = k[b, s:e].transpose(0, 1)
        b_A = beta[b, s:e].T[..., None] * (b_k @ b_k.transpose(1, 2))
        A[b, s:e, :, : e - s] = b_A.masked_fill(torch.ones(e - s, e - s).triu().bool(), float("nan")).transpose(0, 1)
    return guarded(A.to(dtype), device)


def check(backend, A, cu=None, output_dtype=None):
    got = gdn_ops.solve_tril(A, cu, output_dtype)
    assert got.dtype == (output_dtype or A.dtype) and got.is_contiguous()
    assert_close(got, reference.solve_tril(A, cu), RMS[got.dtype])
    assert backend.name == "interpreter" or torch.equal(got, gdn_ops.solve_tril(A, cu, output_dtype))
    return got


@pytest.mark.parametrize("C", [16, 32, 64])
def test_dense(backend, C):
    check(backend, matrices(2, 70, 1, C, device=backend.device))


@pytest.mark.parametrize("C, index", [(16, torch.int64), (32, torch.int64), (64, torch.int64), (64, torch.int32)], ids=str)
def test_packed(backend, C, index):
    lengths = (0, 1, 15, 0, 63, 64, 65, 0)
    cu = offsets(lengths, 3, dtype=index)
    got = check(backend, matrices(1, 220, 1, C, cu, device=backend.device), guarded(cu, backend.device))
    assert not got[:, :3].any() and not got[:, 211:].any()


@pytest.mark.parametrize("dtype", RMS, ids=str)
@pytest.mark.parametrize("output_dtype", [None, *RMS], ids=str)
def test_dtypes(backend, dtype, output_dtype):
    check(backend, matrices(1, 30, 1, 64, dtype=dtype, device=backend.device), output_dtype=output_dtype)


@pytest.mark.parametrize("C, rows", [(64, 64), (64, 1), (64, 15), (64, 17), (64, 63), (32, 64), (32, 17), (16, 64), (16, 15)])
@pytest.mark.parametrize("sign", [1, -1])
def test_equal_keys_invert_exactly(backend, C, rows, sign):
    """Equal unit keys, or of alternating sign, with beta = 1: I minus, or plus, the first subdiagonal."""
    keys = torch.tensor([1.0, sign]).double().repeat(rows)[:rows].view(1, rows, 1, 1)
    A = matrices(1, rows, 1, C, keys=keys, beta=torch.ones(1, rows, 1).double(), device=backend.device)
    t = torch.arange(rows)
    want = torch.zeros(1, rows, 1, C)
    want[0, t, 0, t % C] = 1
    later = t[t % C > 0]
    want[0, later, 0, later % C - 1] = -sign
    assert torch.equal(gdn_ops.solve_tril(A).cpu(), want)


@pytest.mark.parametrize("spread", [0, 0.1, 0.5, 1])
@pytest.mark.parametrize("beta", [0.5, 0.9, 1.9])
def test_similar_keys(backend, spread, beta):
    """Where the terms of a power series are large: a run of one repeated token, more or less."""
    keys = F.normalize(1 + spread * torch.randn(1, 64, 1, 24, generator=seeded(3)).double(), dim=-1)
    A = matrices(1, 64, 1, 64, keys=keys, beta=torch.full((1, 64, 1), beta).double(), device=backend.device)
    # beta > 1: entries of 1.9 do not decay with distance, and a merge sums up 32 of them that cancel
    assert_close(gdn_ops.solve_tril(A), reference.solve_tril(A), 1e-6 if beta < 1 else 2e-5)


@pytest.mark.parametrize("C", [16, 32, 64])
def test_ill_conditioned(backend, C):
    """N(0, 1) entries: the inverse reaches 1e7 and only the residual can be small."""
    A = torch.randn(1, 64, 1, C, generator=seeded(4))
    got = gdn_ops.solve_tril(guarded(A, backend.device)).cpu().double()
    for t in range(0, 64, C):
        L = torch.eye(C) + A[0, t : t + C, 0].double().tril(-1)
        X = got[0, t : t + C, 0]
        assert ((L @ X - torch.eye(C)).norm() / (L.norm() * X.norm())).item() < 1e-6


@pytest.mark.parametrize("T, lengths", [(0, None), (0, ()), (5, ()), (0, (0, 0)), (5, (0, 0))], ids=str)
def test_nothing_to_do(backend, T, lengths):
    cu = None if lengths is None else offsets(lengths, device=backend.device)
    got = gdn_ops.solve_tril(torch.full((1, T, 2, 64), float("nan"), device=backend.device), cu)
    assert got.shape == (1, T, 2, 64) and not got.any()


def test_fp16_saturates(backend):
    A = torch.zeros(1, 2, 1, 16, device=backend.device)
    A[0, 1, 0, 0] = 1e5
    assert gdn_ops.solve_tril(guarded(A, backend.device), None, FP16)[0, 1, 0, 0].item() == -65504


@pytest.mark.parametrize(
    "change, text",
    [
        (dict(A=torch.zeros(5, 1, 64)), "A: expected shape [any, any, any, any], got [5, 1, 64]"),
        (dict(A=torch.zeros(1, 5, 1, 48)), "A: expected chunks of 16, 32 or 64 (its last dimension), got 48"),
        (dict(A=torch.zeros(1, 5, 1, 64).double()), "A: expected bf16 or fp16 or fp32, got another dtype"),
        (dict(A=torch.zeros(1, 5, 64, 64).transpose(2, 3)), "A: expected unit stride in the last dimension, got stride 64"),
        (dict(A=torch.zeros(1, 5, 1, 64, requires_grad=True)), "A: expected no gradient"),
        (dict(output_dtype=torch.float64), "output_dtype: expected bf16, fp16 or fp32, got another dtype"),
        (dict(output_dtype=torch.int32), "output_dtype: expected bf16, fp16 or fp32, got int32"),
        (dict(cu_seqlens=torch.tensor([0.0, 5])), "cu_seqlens: expected int32 or int64, got fp32"),
        (dict(cu_seqlens=torch.tensor([[0, 5]])), "cu_seqlens: expected shape [any], got [1, 2]"),
        (dict(cu_seqlens=torch.zeros(0, dtype=torch.int64)), "cu_seqlens: expected N + 1 entries, got [0]"),
        (dict(A=torch.zeros(2, 5, 1, 60), cu_seqlens=torch.tensor([0, 5])), "got 60; cu_seqlens: expected B = 1 (packed tokens) with it"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_refusals(change, text):
    with pytest.raises(RuntimeError) as e:
        gdn_ops.solve_tril(**{"A": torch.zeros(1, 5, 1, 64), **change})
    assert "gdn.solve_tril: " in str(e.value) and text in str(e.value)


@pytest.mark.parametrize("output_dtype", [None, BF16], ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_opcheck(output_dtype, packed):
    cu = torch.tensor([0, 3, 5]) if packed else None
    torch.library.opcheck(torch.ops.gdn.solve_tril, (torch.zeros(1, 5, 2, 16), cu, output_dtype))
