from dataclasses import dataclass

import pytest
import torch
from harness import assert_close, guarded, seeded

import gdn_ops
from gdn_ops import reference

RMS = {torch.float32: 2e-6, torch.bfloat16: 2.5e-3, torch.float16: 4e-4}  # rounding of the stored output
BF16, FP32 = torch.bfloat16, torch.float32


@dataclass(frozen=True)
class Case:
    H: int = 2
    HV: int = 4
    K: int = 128
    V: int = 128
    T: int = 5

    def inputs(self, device, dtype=BF16, gates=FP32, weights=FP32):
        r = seeded(4)
        qkv = torch.randn(self.T, 2 * self.H * self.K + self.HV * self.V, generator=r).to(dtype)
        a, b = ((torch.randn(self.T, self.HV, generator=r) * 4).to(gates) for _ in "ab")
        A_log, dt_bias = (torch.randn(self.HV, generator=r).to(weights) for _ in "ab")
        return [guarded(x, device) for x in (qkv, a, b, A_log, dt_bias)] + [self.H, self.K, self.V]


CASES = [
    Case(),
    Case(T=1),
    Case(1, 1, T=40),
    Case(1, 3, 64, 64, T=33),
    Case(3, 12, 256, 128, T=3),
    Case(2, 16, 32, 8, T=7),
    Case(1, 33, 16, 24),
    Case(2, 2, 48, 100),
    Case(1, 2, 200, 250, T=3),
    Case(3, 3, 1, 3, T=70),
]


def check(*args, **options):
    got = gdn_ops.fused_post_conv_prep(*args, **options)
    want = reference.fused_post_conv_prep(*args, **options)
    qkv = args[0]
    for name, g, w in zip("q k v g beta".split(), got, want, strict=True):
        assert g.is_contiguous() and g.dtype == (qkv.dtype if name in "qkv" else FP32)
        assert_close(g, w, RMS[g.dtype], what=name)
    assert torch.equal(got[2].double().cpu(), want[2]), "v is a copy"
    again = gdn_ops.fused_post_conv_prep(*args, **options)
    assert all(map(torch.equal, got, again))
    return got


@pytest.mark.parametrize("dtype", RMS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(backend, case, dtype):
    args = case.inputs(backend.device, dtype, dtype)
    got = check(*args)
    alone = gdn_ops.fused_post_conv_prep(*(x[-1:] for x in args[:3]), *args[3:])
    assert all(torch.equal(g[-1:], o) for g, o in zip(got, alone)), "a token does not depend on its neighbours"
    q, k = check(*args, use_qk_l2norm=False, output_g_exp=True)[:2]
    assert torch.equal(torch.cat([q.flatten(1), k.flatten(1)], 1), args[0][:, : 2 * case.H * case.K])


@pytest.mark.parametrize("gates, weights", [(FP32, FP32), (BF16, FP32), (FP32, BF16), (BF16, BF16)], ids=str)
def test_gate_dtypes(backend, gates, weights):
    check(*Case().inputs(backend.device, BF16, gates, weights))


@pytest.mark.parametrize("start", [0, 8, 4, 1])
def test_slices_of_projections(backend, start):
    """qkv among NaN; a and b by key head, as an interleaved projection holds them, with weights of any stride."""
    case = Case(2, 6, 32, 32)
    qkv, a, b, A_log, dt_bias, *sizes = case.inputs(backend.device)
    wide = torch.full((5, 360), float("nan"), dtype=BF16, device=backend.device)
    part = wide[:, start : start + qkv.shape[1]]
    part.copy_(qkv)
    ba = torch.full((5, 2, 7), float("nan"), device=backend.device)
    ba[..., :3], ba[..., 3:6] = b.view(5, 2, 3), a.view(5, 2, 3)
    weights = torch.stack([A_log, dt_bias], 1)
    want = gdn_ops.fused_post_conv_prep(qkv, a, b, A_log, dt_bias, *sizes)
    for x, y in ((ba[..., 3:6], ba[..., :3]), (a, ba[..., :3]), (ba[..., 3:6].reshape(5, 6).t().contiguous().t(), b)):
        got = check(part, x, y, weights[:, 0], weights[:, 1], *sizes)
        assert all(torch.equal(g, w) for g, w in zip(got[2:], want[2:]))
        assert_close(got[0], want[0], RMS[BF16])


def test_gates_neither_overflow_nor_vanish(backend):
    x = torch.tensor([-80, -30, -20, -9, -1, 0, 19.99, 20, 20.01, 88, 89, 100, 300], device=backend.device)
    HV = len(x)
    b = torch.tensor([-100, 100, 0.5] + [0] * 10, device=backend.device)
    qkv, zero = x.new_zeros(1, 2 * 8 + HV * 8), x.new_zeros(HV)
    *_, g, beta = gdn_ops.fused_post_conv_prep(qkv, x[None], b[None], zero - 5, zero, 1, 8, 8)
    want, _ = reference.fused_gdn_gating(*(t.cpu() for t in (zero - 5, x, b, zero)))
    assert ((g[0].cpu() / want - 1).abs() < 1e-5).all()
    assert beta[0, :3].tolist() == [pytest.approx(0, abs=1e-37), 1, pytest.approx(0.62245935, rel=1e-6)]


@pytest.mark.parametrize("dtype", RMS, ids=str)
def test_zero_heads_stay_zero(backend, dtype):
    for K in (32, 24):
        qkv, *rest = Case(2, 2, K, 16).inputs(backend.device, dtype)
        qkv[1] = 0
        q, k, *_ = check(qkv, *rest)
        assert not q[1].any() and not k[1].any()


def test_nothing(backend):
    qkv, a, b, *rest = Case().inputs(backend.device)
    got = gdn_ops.fused_post_conv_prep(qkv[:0], a[:0], b[:0], *rest)
    assert [tuple(t.shape) for t in got] == [(0, 2, 128), (0, 2, 128), (0, 4, 128), (0, 4), (0, 4)]


def test_refusals(backend):
    qkv, a, b, A_log, dt_bias, *sizes = Case(2, 4, 16, 8).inputs(backend.device)
    cases = [
        ((qkv[:, :-1], a, b, A_log, dt_bias, *sizes), r"gdn.fused_post_conv_prep: qkv: expected shape \[any, 96\], got \[5, 95\]"),
        ((qkv, a[:3], b, A_log, dt_bias, *sizes), r"a: expected shape \[5, 4\], got \[3, 4\]"),
        ((qkv, a, b.view(5, 1, 4), A_log, dt_bias, *sizes), r"b: expected shape \[5, 2, 2\], got \[5, 1, 4\]"),
        ((qkv, a.half(), b, A_log, dt_bias, *sizes), "a: expected fp32 or bf16, got fp16"),
        ((qkv, a, b, A_log, dt_bias[:2], *sizes), r"dt_bias: expected shape \[4\], got \[2\]"),
        ((qkv, a, b, A_log[:3], dt_bias, *sizes), "HV: expected a multiple of H = 2 heads, got 3"),
        ((qkv, a, b, A_log, dt_bias, 2, 300, 8), "K: expected a head size of 1 to 256, got 300"),
        ((qkv.t().contiguous().t(), a, b, A_log, dt_bias, *sizes), "qkv: expected unit stride"),
        ((qkv, a, b, A_log.clone().requires_grad_(), dt_bias, *sizes), "A_log: expected no gradient"),
    ]  # fmt: skip
    for args, text in cases:
        with pytest.raises(RuntimeError, match=text):
            gdn_ops.fused_post_conv_prep(*args)
