"""Gates, beta and rounding of the token-loop ops: values worked out by hand, and long decodes."""

import pytest
import torch
from recurrent_cases import BF16, FP32, Case, run_update, setup

import gdn_ops
from gdn_ops import reference


def unit_key(device, K=64):
    """One row, one head: q = k = e0, v = 1, an empty state."""
    q = torch.zeros(1, 1, 1, K, dtype=BF16, device=device)
    q[..., 0] = 1
    pool = torch.zeros(1, 1, K, 16, device=device)
    return q, torch.ones(1, 1, 1, 16, dtype=BF16, device=device), pool, torch.zeros(1, dtype=torch.int32, device=device)


@pytest.mark.parametrize("b, want", [(0.5, 0.62245935), (100.0, 1.0), (-100.0, 0.0), (-20.0, 2.0611537e-9)])
def test_beta_is_not_rounded(backend, b, want):
    q, v, pool, slots = unit_key(backend.device)
    zero, b = torch.full((1,), -100.0, device=backend.device), torch.full((1, 1, 1), b, dtype=BF16, device=backend.device)
    gdn_ops.fused_recurrent_gated_delta_rule_update(q, q, v, None, None, zero, torch.zeros_like(b), zero, b, pool, slots, scale=1.0)
    assert pool[0, 0, 0].tolist() == pytest.approx([want] * 16, rel=3e-7, abs=1e-38)
    assert not pool[0, 0, 1:].any()


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("x", [-30, -20, 0, 19.99, 20, 20.01, 88, 89, 100, 300])
def test_softplus(backend, x, dtype, split):
    """The decay of a state of ones: exp(-exp(-5) softplus(x))."""
    q, v, pool, slots = unit_key(backend.device)
    pool.fill_(1.0)
    a = torch.full((1, 1, 1), x / 2 if split else x, dtype=dtype, device=backend.device)
    bias = a.flatten().float() if split else torch.zeros(1, device=backend.device)
    b, A_log = torch.full_like(a, -100.0), torch.full((1,), -5.0, device=backend.device)
    o = gdn_ops.fused_recurrent_gated_delta_rule_update(q.to(dtype), q.to(dtype), v.to(dtype), None, None, A_log, a, bias, b, pool, slots)
    g, _ = reference.fused_gdn_gating(A_log.cpu(), a.cpu(), b.cpu(), bias.cpu())
    assert pool[0, 0, 1:].flatten().tolist() == pytest.approx([g.exp().item()] * (63 * 16), rel=3e-7)
    assert torch.isfinite(o.float()).all()


@pytest.mark.parametrize("V", [16, 128], ids=["token loop", "step"])
@pytest.mark.parametrize("state", [FP32, BF16])
def test_long_decode(native_backend, state, V):
    """512 steps. float32 throughout is 6e-7 off (beta rounded to bf16: 1.8e-3); a bf16 pool is no worse than rounding each
    step's exact state once."""
    case = Case("", HV=1, B=1, K=128, V=V, T=512, raw=True, v_first=True, state=state)
    x = setup(case, native_backend.device, [0])
    first = x.pool[:1].cpu().double()
    g, beta = reference.fused_gdn_gating(*(t.cpu() for t in (x.A_log, x.a, x.b, x.dt_bias)))
    exact = reference.gated_delta_rule(x.q, x.k, x.v, g, beta, None, first, None, True, True)[1]
    for t in range(512):
        run_update(case, x, **{n: getattr(x, n)[:, t : t + 1] for n in ("q", "k", "v", "a", "b")})
    error = lambda s: ((s.cpu().double() - exact).norm() / exact.norm()).item()  # noqa: E731
    if state == FP32:
        assert error(x.pool[:1]) <= 5e-6
        return
    rounded = first
    for t in range(512):
        row = [y[:, t : t + 1] for y in (x.q, x.k, x.v, g, beta)]
        rounded = reference.gated_delta_rule(*row, None, rounded, None, True, True)[1].to(state).double()
    assert error(x.pool[:1]) <= 1.3 * error(rounded)
