"""Sizes where 32-bit offsets, products of sizes or grid axes overflow. Gigabytes each: run one at a time.

State pools past 2^31 elements are in test_fused_recurrent_gated_delta_rule_update.
"""

import pytest
import torch

from gdn_ops.table import OPS

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.xdist_group("large")]
gdn = torch.ops.gdn
BF16 = torch.bfloat16
B, H, HV, K, V = 16, 64, 64, 128, 128


@pytest.fixture(autouse=True)
def clean(request):
    with torch.no_grad():
        yield
    torch.cuda.empty_cache()


def needs(op: str, gigabytes: float) -> None:
    if op not in OPS:
        pytest.skip(f"no {op} in this build")
    if torch.cuda.mem_get_info()[0] < gigabytes * 1e9:
        pytest.skip(f"needs {gigabytes} GB of GPU memory")


def randn(*shape, dtype=BF16, scale=1.0):
    return torch.randn(*shape, device="cuda", dtype=dtype).mul_(scale)


def last_row_alone(
    op: str, arguments: dict, gigabytes: float, per_row=("q", "k", "v", "g", "beta", "A", "w", "u", "h", "initial_state", "x")
):
    """The last batch row of a call of many equals the row called alone, bit by bit."""
    needs(op, gigabytes)
    torch.manual_seed(0)
    arguments = {n: make() if callable(make) else make for n, make in arguments.items()}
    alone = {n: t[-1:] if isinstance(t, torch.Tensor) and n in per_row else t for n, t in arguments.items()}
    many, one = getattr(gdn, op)(**arguments), getattr(gdn, op)(**alone)
    many, one = (r if isinstance(r, tuple | list) else (r,) for r in (many, one))
    for m, o in zip(many, one):
        assert torch.equal(m[-1:], o) and torch.isfinite(o.float()).all() and o.float().abs().max() > 0


def heads(n, width=K, scale=1.0):
    return lambda: randn(B, T, n, width, scale=scale)


T = 17_477  # the first length at which ((B - 1) * T * H + H - 1) * K passes 2^31
GATES = dict(g=lambda: torch.empty(B, T, HV, device="cuda").uniform_(-0.1, 0), beta=lambda: torch.empty(B, T, HV, device="cuda").uniform_())
UNIT = K**-0.5  # keys of about unit length


def strictly_lower():
    A = randn(B, 64 * 547, HV, 64, dtype=torch.float32, scale=0.1)
    A.view(B, 547, 64, HV, 64).mul_(torch.ones(64, 64, device="cuda").tril(-1)[:, None])
    return A


@pytest.mark.parametrize(
    "op, arguments, gigabytes",
    [
        ("l2norm", dict(x=heads(H)), 12),
        ("chunk_local_cumsum", dict(g=lambda: torch.empty(B, T * 121, HV, device="cuda").uniform_(-0.1, 0), chunk_size=64), 22),
        ("chunk_scaled_dot_kkt", dict(k=heads(H, scale=UNIT), **GATES), 24),
        ("solve_tril", dict(A=strictly_lower), 40),
        ("chunk_kkt_solve", dict(k=heads(H, scale=UNIT), **GATES), 20),
        ("recompute_w_u", dict(k=heads(H, scale=UNIT), v=heads(HV), A=heads(HV, 64, 0.1), **GATES), 40),
        ("chunk_fwd_h", dict(k=heads(H, scale=UNIT), w=heads(HV, scale=UNIT), u=heads(HV), g=GATES["g"], output_final_state=True), 60),
        ("chunk_gated_delta_rule", dict(q=heads(H), k=heads(H, scale=UNIT), v=heads(HV), output_final_state=True, **GATES), 100),
        ("fused_recurrent_gated_delta_rule", dict(q=heads(H), k=heads(H, scale=UNIT), v=heads(HV), output_final_state=True, **GATES), 60),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_past_2_31_elements(op, arguments, gigabytes):
    last_row_alone(op, arguments, gigabytes)


def test_chunk_fwd_o_past_2_31_elements():
    rows = -(-T // 64)
    h = lambda: randn(B, rows, HV, K, V, scale=0.1)  # noqa: E731
    last_row_alone("chunk_fwd_o", dict(q=heads(H), k=heads(H, scale=UNIT), v=heads(HV), h=h, g=GATES["g"]), 60)


def test_gates_and_norm_past_2_31_elements():
    needs("fused_gdn_gating", 60)
    rows = 2**31 // HV + 70
    a, b = randn(rows, HV), randn(rows, HV)
    A_log, dt_bias = torch.randn(HV, device="cuda"), torch.randn(HV, device="cuda")
    many, one = gdn.fused_gdn_gating(A_log, a, b, dt_bias), gdn.fused_gdn_gating(A_log, a[-70:], b[-70:], dt_bias)
    assert all(torch.equal(m[-70:], o) for m, o in zip(many, one))


def test_gated_rmsnorm_past_2_31_elements():
    needs("gated_rmsnorm", 30)
    x, weight = randn(2**31 // V + 70, V), randn(V)
    assert torch.equal(gdn.gated_rmsnorm(x, weight, x)[-70:], gdn.gated_rmsnorm(x[-70:], weight, x[-70:]))


def test_conv_past_2_31_elements():
    """One sequence longer than 2^31 / D tokens, and one in the last rows of it."""
    needs("causal_conv1d_fn", 20)
    D, tokens = 8192, 2**18 + 100
    x, weight = randn(tokens, D), randn(D, 4)
    ends = torch.tensor([0, tokens - 90, tokens], device="cuda")
    states = randn(2, D, 3)
    alone = states[1:].clone()
    arguments = dict(cache_indices=torch.tensor([0, 1], device="cuda"), has_initial_state=torch.tensor([False, True], device="cuda"))
    y = gdn.causal_conv1d_fn(x=x, weight=weight, conv_states=states, query_start_loc=ends, activation=1, **arguments)
    arguments = dict(cache_indices=torch.tensor([0], device="cuda"), has_initial_state=torch.tensor([True], device="cuda"))
    ends = torch.tensor([0, 90], device="cuda")
    want = gdn.causal_conv1d_fn(x=x[-90:], weight=weight, conv_states=alone, query_start_loc=ends, activation=1, **arguments)
    assert torch.equal(y[-90:], want) and torch.equal(states[1:], alone) and torch.equal(states[0], x[-93:-90].t())


# ---- many sequences --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"])
def test_more_heads_times_sequences_than_a_grid_axis(op):
    """2050 sequences of 16 tokens, 32 value heads: 65,600 programs and more."""
    needs(op, 20)
    N, length, H, HV = 2050, 16, 16, 32
    q, k, v = randn(1, N * length, H, K), randn(1, N * length, H, K, scale=UNIT), randn(1, N * length, HV, V)
    g, beta = torch.empty(1, N * length, HV, device="cuda").uniform_(-0.1, 0), torch.empty(1, N * length, HV, device="cuda").uniform_()
    h0, cu = randn(N, HV, K, V, dtype=torch.float32, scale=0.1), torch.arange(N + 1, device="cuda") * length
    o, ht = getattr(gdn, op)(q, k, v, g, beta, None, h0, True, cu)
    for n in (0, 1000, 2047, 2048, 2049):
        part = slice(n * length, (n + 1) * length)
        alone = getattr(gdn, op)(*(t[:, part] for t in (q, k, v, g, beta)), None, h0[n : n + 1], True, cu[:2])
        assert torch.equal(o[:, part], alone[0]) and torch.equal(ht[n : n + 1], alone[1]), f"sequence {n}"


def test_conv_of_70000_sequences():
    needs("causal_conv1d_fn", 2)
    N, D = 70_000, 64
    x, weight, states = randn(N, D), randn(D, 4), randn(N, D, 3)
    window = torch.cat([states, x[:, :, None]], 2).double()
    arguments = dict(cache_indices=torch.arange(N, device="cuda"), has_initial_state=torch.ones(N, dtype=torch.bool, device="cuda"))
    arguments |= dict(query_start_loc=torch.arange(N + 1, device="cuda"), activation=0)
    y = gdn.causal_conv1d_fn(x=x, weight=weight, conv_states=states, **arguments)
    want = (window * weight.double()).sum(2)
    assert (y.double() - want).norm() <= 4e-3 * want.norm() and torch.equal(states, window[:, :, 1:].to(BF16))


# ---- pools past 2^31 elements ------------------------------------------------------------------------------------


def test_conv_pool_past_2_31_elements():
    needs("causal_conv1d_update", 12)
    D, slots = 8192, (87_382, 87_383, 0)
    pool = torch.full((87_390, D, 3), 7.0, dtype=BF16, device="cuda")
    index, start, x, weight = torch.tensor(slots, device="cuda"), randn(3, D, 3), randn(3, D), randn(D, 4)
    pool[index] = start
    y = gdn.causal_conv1d_update(x=x, conv_state=pool, weight=weight, activation=1, conv_state_indices=index)
    small = torch.arange(3, device="cuda")
    want = gdn.causal_conv1d_update(x=x, conv_state=start, weight=weight, activation=1, conv_state_indices=small)
    assert torch.equal(y, want) and torch.equal(pool[index], start)
    pool[index] = 7.0
    assert all((part == 7.0).all() for part in pool.split(4096)), "another slot was written"


def test_slots_past_2_31_elements():
    needs("copy_slots", 16)
    pool = torch.full((2, 70_000, 128, 192), 7.0, dtype=torch.float8_e4m3fn, device="cuda")
    x = (torch.arange(128 * 192, device="cuda") % 97).view(128, 192).to(pool.dtype)
    pool[:, 69_999] = x
    index = torch.tensor([69_999, 69_998, 1], device="cuda")
    gdn.copy_slots(pool, index[:1], index[1:2])
    gdn.scatter_states(pool, gdn.gather_states(pool, index[1:2]), index[2:])
    assert all(torch.equal(pool[layer, i].float(), x.float()) for layer in (0, 1) for i in index.tolist())
    gdn.zero_slots(pool, index)
    assert not pool[:, index].float().any()
    pool[:, index] = 7.0
    assert all((part.view(torch.uint8) == part.view(torch.uint8)[0, 0, 0]).all() for part in pool.flatten(0, 1).split(4096))
