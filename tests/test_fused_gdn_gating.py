import pytest
import torch
from harness import assert_close, guarded, seeded

import gdn_ops
from gdn_ops import reference

RMS = 2e-6  # fp32 arithmetic with an approximate exp
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def check(A_log, a, b, dt_bias, *args, rms=RMS):
    g, beta = gdn_ops.fused_gdn_gating(A_log, a, b, dt_bias, *args)
    assert g.dtype == beta.dtype == torch.float32 and g.is_contiguous() and beta.is_contiguous()
    want_g, want_beta = reference.fused_gdn_gating(A_log, a, b, dt_bias, *args)
    assert_close(g, want_g, rms, what="g")
    assert_close(beta, want_beta, rms, what="beta")
    again = gdn_ops.fused_gdn_gating(A_log, a, b, dt_bias, *args)
    assert torch.equal(g, again[0]) and torch.equal(beta, again[1])


@pytest.mark.parametrize("weights", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1,), (33, 32), (2, 5, 48), (2, 3, 5, 3), (1, 40, 64), (7, 100)], ids=str)
def test_values(backend, shape, dtype, weights):
    if torch.float32 not in (dtype, weights) and dtype != weights:
        pytest.skip("two 16-bit dtypes are refused")
    r = seeded(3)
    a, b = (guarded((torch.randn(shape, generator=r) * 4).to(dtype), backend.device) for _ in "ab")
    A_log = guarded((torch.rand(shape[-1], generator=r) * 2.7).to(weights), backend.device)
    dt_bias = guarded((torch.randn(shape[-1], generator=r) - 4).to(weights), backend.device)
    check(A_log, a, b, dt_bias)
    check(A_log, a, b, dt_bias, 2.0, 3.0)


def test_column_slices_of_one_projection(backend):
    row = guarded(torch.randn(2, 37, 91, generator=seeded(4)).to(torch.bfloat16), backend.device)
    weights = guarded(torch.randn(2, 12, generator=seeded(5)), backend.device)
    check(weights[0, ::2], row[..., 3:9], row[..., 80:86], weights[:, 3:9][1])
    check(weights[0, ::2], row.transpose(0, 1)[..., 3:9], row[:1, :, ::16].expand(2, 37, 6).transpose(0, 1), weights[1, :6])


@pytest.mark.parametrize("H, r", [(3, 2), (16, 3), (40, 1), (1, 5)])
def test_heads_in_groups(backend, H, r):
    """b and a as an interleaved projection [b r | a r] per key head holds them: the same bits as from flat rows."""
    row = guarded(torch.randn(2, 35, H, 2 * r + 1, generator=seeded(6)).to(torch.bfloat16), backend.device)
    b, a = row[..., :r], row[..., r : 2 * r]
    weights = guarded(torch.randn(2, H * r, generator=seeded(7)), backend.device)
    want = gdn_ops.fused_gdn_gating(weights[0], a.flatten(2), b.flatten(2), weights[1])
    for got in (
        gdn_ops.fused_gdn_gating(weights[0], a, b, weights[1]),
        [torch.stack(x) for x in zip(*(gdn_ops.fused_gdn_gating(weights[0], a[i], b[i], weights[1]) for i in range(2)))],
    ):
        assert all(g.shape == a.shape and g.is_contiguous() and torch.equal(g.flatten(2), w) for g, w in zip(got, want))
    check(weights[0], a.flatten(2), b.flatten(2), weights[1])


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # of 100, in the interpreter: sigmoid(-100) = 1 / inf
def test_softplus_neither_overflows_nor_vanishes(backend, dtype, split):
    """Each value on its own: exp of it overflows from 88.7 on, and log(1 + e) is 0 from -17 down."""
    x = torch.tensor([-80, -30, -20, -9, -1, 0, 19.99, 20, 20.01, 88, 89, 100, 300]).to(dtype).to(backend.device)
    a, dt_bias = (x / 2, x.float() / 2) if split else (x, torch.zeros(len(x), device=backend.device))
    A_log = torch.full((len(x),), -5.0, device=backend.device)
    b = torch.tensor([-100, 100, 0.5] + [0] * 10, dtype=dtype, device=backend.device)
    g, beta = gdn_ops.fused_gdn_gating(A_log, a[None], b[None], dt_bias)
    want, _ = reference.fused_gdn_gating(A_log, a, b, dt_bias)
    assert ((g[0].cpu() / want.cpu() - 1).abs() < 1e-5).all()
    assert beta[0, :3].tolist() == [pytest.approx(0, abs=1e-37), 1, pytest.approx(0.62245935, rel=1e-6)]
    if dtype == torch.float32:
        assert g[0, [1, 7, 11, 12]].tolist() == pytest.approx([-6.305e-16, -0.1347589, -0.6737947, -2.021384], rel=1e-4)


def test_nothing(backend):
    w = torch.zeros(4, device=backend.device)
    g, beta = gdn_ops.fused_gdn_gating(w, w.new_zeros(2, 0, 4), w.new_zeros(2, 0, 4), w)
    assert g.shape == beta.shape == (2, 0, 4)


def test_refusals(backend):
    w, a = torch.zeros(4, device=backend.device), torch.zeros(2, 4, device=backend.device)
    cases = [
        ((w, a[:, :3], a, w), r"gdn.fused_gdn_gating: b: expected the shape of a, \[2, 3\], got \[2, 4\]; A_log: expected shape \[3\], got \[4\]"),
        ((w, a, a[0], w), r"b: expected the shape of a, \[2, 4\], got \[4\]"),
        ((w, a, a, w[:3]), r"dt_bias: expected shape \[4\], got \[3\]"),
        ((w, a.bfloat16(), a.half(), w), "b: expected fp32 or bf16, got fp16"),
        ((w.double(), a, a, w), "A_log: expected fp32 or bf16, got another dtype"),
        ((w, a.new_zeros(1, 1, 1, 2, 4), a.new_zeros(1, 1, 1, 2, 4), w), "a: expected 1 to 4 dimensions"),
        ((w[:0], a[:, :0], a[:, :0], w[:0]), "a: expected at least one head"),
        ((w, a, a, w, 0.0), "softplus_beta: expected a positive number"),
        ((w.clone().requires_grad_(), a, a, w), "A_log: expected no gradient"),
    ]  # fmt: skip
    for args, text in cases:
        with pytest.raises(RuntimeError, match=text):
            gdn_ops.fused_gdn_gating(*args)
