"""State pools narrower than their sums: fp8 with a scale per head, and bf16 rounded at random."""

import pytest
import torch
from harness import assert_close, guarded
from recurrent_cases import BF16, FP16, FP32, RMS, Case, arguments, bits, run_update, setup, table
from test_fused_recurrent_gated_delta_rule_packed_decode import inputs
from test_fused_recurrent_gated_delta_rule_packed_decode import run as run_packed

from gdn_ops import reference

FP8 = torch.float8_e4m3fn


def write(backend, values, **options):
    """Stores values [rows, V] (fp32) as row 0 of empty states: k = e0, beta = 1. Returns that row of the pool."""
    n, V = values.shape
    q = torch.zeros(n, 1, 1, 16, device=backend.device)
    q[..., 0] = 1
    pool = options.pop("pool", None)
    pool = torch.zeros(n, 1, 16, V, device=backend.device).to(options.pop("dtype")) if pool is None else pool
    case = Case("", K=16, V=V, HV=1, dtype=FP32)
    x = type(
        "",
        (),
        dict(q=q, k=q, v=values[:, None, None], g=torch.zeros(n, 1, 1, device=backend.device), beta=None, pool=pool, cu_seqlens=None),
    )
    x.A_log = x.a = x.dt_bias = x.b = None
    x.slots = options.pop("slots", torch.arange(n, device=backend.device))
    run_update(case, x, use_qk_l2norm_in_kernel=False, **options)
    return pool[:, 0, 0]


# ---- fp8 ---------------------------------------------------------------------------------------------------------


def quantised(case, device, count=None):
    x = setup(case, device, count=count)
    x.scales = guarded(torch.linspace(0.01, 0.03, 2 * case.HV), device)[::2]
    x.pool = (x.pool.cpu() / x.scales.cpu()[:, None, None]).to(FP8).to(device)
    return x


@pytest.mark.parametrize("scale", [1.0, 0.37])
def test_fp8_codes(backend, scale):
    """Every code reads as its number times the scale, and is stored as itself again; NaN stays NaN."""
    codes = torch.arange(256, dtype=torch.uint8).view(FP8)
    q = torch.eye(16, device=backend.device)[:, None, None]
    pool = codes.view(1, 1, 16, 16).expand(16, -1, -1, -1).clone().to(backend.device)
    case = Case("", K=16, V=16, HV=1, B=16, dtype=FP32)
    x = type("", (), dict(q=q, k=q, v=q, g=torch.zeros(16, 1, 1, device=backend.device), pool=pool, cu_seqlens=None))
    x.beta, x.slots = torch.zeros_like(x.g), torch.arange(16, device=backend.device)
    x.A_log = x.a = x.dt_bias = x.b = None
    options = dict(use_qk_l2norm_in_kernel=False, scale=1.0, pool_scale=torch.full((1,), scale, device=backend.device))
    options |= dict(has_initial_state=torch.ones(16, dtype=torch.bool, device=backend.device))
    finite = codes.float().nan_to_num(0.0).to(FP8)  # row by row, so that a NaN meets no other number
    x.pool.copy_(finite.view(1, 1, 16, 16))
    o = run_update(case, x, **options)
    assert torch.equal(o[:, 0, 0].cpu(), finite.view(16, 16).float() * scale)
    assert all(torch.equal(row.cpu().float(), finite.view(16, 16).float()) for row in x.pool[:, 0])
    x.pool.fill_(float("nan"))
    run_update(case, x, **options)
    assert x.pool.float().isnan().all()


def test_fp8_rounding(backend):
    """To nearest, ties to even, saturated: torch's own cast of the clamped quotient, bit by bit."""
    numbers = torch.arange(127, dtype=torch.uint8).view(FP8).float()
    ties = (numbers[:-1] + numbers[1:]) / 2
    edges = torch.tensor(
        [0.0, 448, 449, 463, 464, 465, 500, 1e30, float("inf"), 2**-10, 2**-10 * 1.001, 2**-11, 1e-30, 2**-6, 2**-6 - 2**-11, float("nan")]
    )
    some = torch.randn(400, generator=torch.Generator().manual_seed(3)).exp() * torch.logspace(-4, 2, 400)
    values = torch.cat([numbers, ties, ties.nextafter(ties * 2), ties.nextafter(ties * 0), edges, some])
    values = torch.cat([values, -values, torch.zeros(-2 * len(values) % 32)]).view(-1, 32)
    for scale in (1.0, 0.25, 0.3):
        stored = write(
            backend, (values * scale).to(backend.device), dtype=FP8, pool_scale=torch.full((1,), scale, device=backend.device)
        ).cpu()
        want = (values * scale / scale).clamp(-448, 448).to(FP8)
        nan = want.float().isnan()
        assert torch.equal(stored.float().isnan(), nan)
        assert torch.equal(stored.view(torch.uint8)[~nan] & 127, want.view(torch.uint8)[~nan] & 127), scale
        assert torch.equal(stored.float()[~nan], want.float()[~nan])


@pytest.mark.parametrize(
    "case",
    [
        Case("decode", K=128, B=3, raw=True, v_first=True),
        Case("k-first", K=64, B=2, T=3, H=2, HV=4),
        Case("packed", lengths=(2, 0, 1), after=1, K=100, V=13, v_first=True),
        Case("largest", K=256, V=40, B=1, dtype=FP16),
    ],
    ids=str,
)
def test_fp8_pool(backend, case):
    """Outputs are those of the dequantised state; stored states are within half a step (2^-4) of what they should be."""
    x = quantised(case, backend.device)
    want_o, want_pool, _ = reference.fused_recurrent_gated_delta_rule_update(**arguments(case, x, dict(pool_scale=x.scales)))
    before = x.pool.clone()
    o = run_update(case, x, pool_scale=x.scales)
    assert_close(o, want_o, RMS[case.dtype], what="o")
    got, scales = x.pool.cpu().double() * x.scales.cpu().double()[:, None, None], x.scales.cpu().double()[:, None, None]
    assert ((got - want_pool).abs() <= want_pool.abs() * 2.0**-4 * 1.001 + 2.0**-10 * 1.001 * scales).all()
    live = [s for s, n in zip(x.slots.tolist(), [case.T] * case.B if case.lengths is None else case.lengths) if n]
    others = [s for s in range(len(before)) if s not in live]
    assert torch.equal(x.pool.view(torch.uint8)[others], before.view(torch.uint8)[others])


def test_fp8_pool_verifies_drafts(backend):
    """2-D slots and intermediate states in fp32; the last step's state is what the pool has, rounded."""
    case = Case("", B=2, T=3, raw=True, v_first=True)
    x = quantised(case, backend.device, count=9)
    steps = torch.zeros(2, 3, *x.pool.shape[1:], device=backend.device)
    slots = table(case, backend.device)
    args = arguments(case, x, dict(pool_scale=x.scales, ssm_indices=slots, intermediate_states=steps))
    want_o, _, want_steps = reference.fused_recurrent_gated_delta_rule_update(**args)
    o = run_update(case, x, pool_scale=x.scales, ssm_indices=slots, intermediate_states=steps)
    assert_close(o, want_o, RMS[BF16], what="o")
    assert_close(steps, want_steps, 1e-6, what="steps")
    stored = (steps / x.scales[:, None, None]).clamp(-448, 448).to(FP8)
    assert torch.equal(x.pool.view(torch.uint8)[slots[:, :3].long()], stored.view(torch.uint8))


# ---- bf16 at random ----------------------------------------------------------------------------------------------


def seed(value, backend):
    return torch.tensor([value], device=backend.device)


def test_random_rounding_takes_a_neighbour(backend):
    values = torch.randn(4, 32, generator=torch.Generator().manual_seed(5)).to(backend.device)
    values[0, :4] = torch.tensor([0.0, 1.0, -2.5, float("inf")])  # numbers of bf16 stay
    values[0, 4] = float("nan")
    stored = write(backend, values, dtype=BF16, rounding_seed=seed(11, backend)).float()
    low = (values.view(torch.int32) & -65536).view(FP32)
    high = ((values.view(torch.int32) & -65536) + 65536).view(FP32)
    exact = low == values
    assert torch.equal(stored[exact], values[exact]) and stored[0, 4].isnan()
    assert ((stored == low) | (stored == high) | values.isnan())[~exact].all()
    assert (stored == low)[~exact].any() and (stored == high)[~exact].any()


def test_random_rounding_has_no_bias(native_backend):
    """4,096 seeds: the mean is within 5 standard deviations of the value, and seeds differ."""
    n = 4096
    values = torch.tensor([1 + 2.0**-10, 1.003, -3.01, 100.2, 1e-3, -7e-20, 2.0**-7 + 2.0**-22, 0.7]).to(native_backend.device)
    pool = torch.zeros(1, 1, 16, 8, dtype=BF16, device=native_backend.device)
    total = torch.zeros(8, dtype=torch.float64)
    for s in range(n):
        flag = torch.zeros(1, dtype=torch.bool, device=native_backend.device)
        total += (
            write(native_backend, values[None], pool=pool, rounding_seed=seed(s, native_backend), has_initial_state=flag)[0].cpu().double()
        )
    v = values.cpu()
    low = (v.view(torch.int32) & -65536).view(FP32).double()
    step = ((v.view(torch.int32) & -65536) + 65536).view(FP32).double() - low
    p = (v.double() - low) / step
    error = ((total / n - low) / step - p).abs()
    assert (error <= 5 * (p * (1 - p) / n).sqrt() + 1e-9).all(), error


def test_random_bits_are_even():
    """The hash over elements, slots and seeds, through what it does to a number in the middle: half go up, and neither
    neighbours in memory nor slots nor seeds go together."""
    values = torch.full((64, 32), 1 + 2.0**-8)
    backend = type("", (), dict(device="cpu"))
    up = torch.stack([write(backend, values, dtype=BF16, rounding_seed=torch.tensor([s])).float() > 1 for s in (0, 1, 2, -1)]).double()
    n = up.numel()
    assert abs(up.mean().item() - 0.5) <= 5 * 0.5 / n**0.5
    for a, b in ((up[1:], up[:-1]), (up[:, 1:], up[:, :-1]), (up[..., 1:], up[..., :-1])):
        assert abs(((a - 0.5) * (b - 0.5)).mean().item()) <= 5 * 0.25 / a.numel() ** 0.5


@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize("sizes", [dict(K=128, V=32), dict(K=48, V=20)], ids=str)
def test_random_rounding_does_not_depend_on_the_batch(backend, sizes, v_first):
    """The same seed gives the same bits, alone or among others, and in either layout; another gives others."""
    case = Case("", B=3, raw=True, state=BF16, v_first=v_first, **sizes)
    x, alone, again, other, nearest = (setup(case, backend.device) for _ in range(5))
    o = run_update(case, x, rounding_seed=seed(3, backend))
    assert torch.equal(run_update(case, again, rounding_seed=seed(3, backend)), o) and torch.equal(bits(again.storage), bits(x.storage))
    for n in (2, 0, 1):
        row = {i: getattr(x, i)[n : n + 1] for i in ("q", "k", "v", "a", "b")}
        run_update(case, alone, ssm_indices=x.slots[n : n + 1], rounding_seed=seed(3, backend), **row)
    assert torch.equal(bits(alone.storage), bits(x.storage))
    run_update(case, other, rounding_seed=seed(4, backend))
    assert not torch.equal(other.pool, x.pool)
    run_update(case, nearest)
    live = x.pool[x.slots].float()
    assert ((live - nearest.pool[x.slots].float()).abs() <= live.abs() * 2.0**-7).all(), "a neighbour of the same number"


def test_random_rounding_of_every_step(backend):
    """Each column's state is rounded for its own slot; intermediate states are rounded to nearest."""
    case = Case("", B=2, T=2, state=BF16, v_first=True)
    x, one = setup(case, backend.device, count=9), setup(case, backend.device, count=9)
    steps = torch.zeros(2, 2, *x.pool.shape[1:], device=backend.device)
    slots = table(case, backend.device)
    run_update(case, x, ssm_indices=slots, intermediate_states=steps, rounding_seed=seed(9, backend))
    run_update(case, one, ssm_indices=slots[:, 0], ssm_write_indices=slots[:, 1], rounding_seed=seed(9, backend))
    assert torch.equal(x.pool[slots[:, 1]], one.pool[slots[:, 1]])
    for t in range(2):
        got = x.pool[slots[:, t]].float()
        low = (steps[:, t].contiguous().view(torch.int32) & -65536).view(FP32)
        high = ((steps[:, t].contiguous().view(torch.int32) & -65536) + 65536).view(FP32)
        assert ((got == low) | (got == high)).all()


def test_packed_decode(backend):
    """The same pools through packed rows: the bits of the update."""
    case = Case("", H=2, HV=4, B=3, raw=True, v_first=True, state=BF16)
    x, want = inputs(case, backend.device), setup(case, backend.device)
    run_packed(case, x, rounding_seed=seed(3, backend))
    assert torch.equal(x.out, run_update(case, want, rounding_seed=seed(3, backend))) and torch.equal(x.pool, want.pool)
    want = quantised(case, backend.device)
    x.pool = want.pool.clone()
    run_packed(case, x, pool_scale=want.scales)
    assert torch.equal(x.out, run_update(case, want, pool_scale=want.scales))
    assert torch.equal(x.pool.view(torch.uint8), want.pool.view(torch.uint8))


CASE = Case("", state=BF16)
X = setup(CASE)
ONES = torch.ones(2)
REFUSALS = [
    (dict(pool_scale=ONES), "pool_scale: expected None, as the pool is not fp8, got a tensor"),
    (dict(ssm_pool=X.pool.to(FP8)), "pool_scale: expected a tensor, got None"),
    (dict(ssm_pool=X.pool.to(FP8), pool_scale=ONES[:1]), r"pool_scale: expected shape \[2\], got \[1\]"),
    (dict(ssm_pool=X.pool.to(FP8), pool_scale=ONES.half()), "pool_scale: expected fp32, got fp16"),
    (
        dict(ssm_pool=X.pool.to(torch.float8_e5m2), pool_scale=ONES),
        "ssm_pool: expected fp32 or bf16 or fp16 or fp8_e4m3, got another dtype",
    ),
    (dict(rounding_seed=torch.zeros(2, dtype=torch.int64)), r"rounding_seed: expected shape \[1\], got \[2\]"),
    (dict(rounding_seed=torch.zeros(1, dtype=torch.int32)), "rounding_seed: expected int64, got int32"),
    (
        dict(rounding_seed=torch.zeros(1, dtype=torch.int64), ssm_pool=X.pool.half()),
        "rounding_seed: expected None, as the pool is not bf16",
    ),
    (dict(intermediate_states=X.pool[None].to(FP8)), "intermediate_states: expected fp32 or bf16 or fp16, got fp8_e4m3"),
]


@pytest.mark.parametrize("changes, message", REFUSALS, ids=lambda x: x[:40] if isinstance(x, str) else "")
def test_refusals(changes, message):
    with pytest.raises(RuntimeError, match=r"gdn\.fused_recurrent_gated_delta_rule_update: .*" + message):
        run_update(CASE, setup(CASE), **changes)
