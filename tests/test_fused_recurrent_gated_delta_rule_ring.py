"""One step on frozen states and rings."""

from dataclasses import replace

import pytest
import torch
from recurrent_cases import BF16, FP16, FP32, Case, bits
from ring_cases import RINGS, check_ring, ring_setup, run_ring

# Lengths of the rows are 0, 1, 2, .. of rings of R = 6: row 6 of 7 is due with one token, rows 3 and 4 with four.
CASES = [
    Case("raw-v-first", B=7, K=128, V=128, raw=True, v_first=True),
    Case("raw", B=7, K=128, V=128, H=2, HV=4, raw=True),
    Case("gates", B=7, K=64, V=64, index=torch.int32, gates=BF16),
    Case("bf16-pool-v-first", B=7, K=128, V=128, state=BF16, v_first=True, raw=True),
    Case("bf16-pool", B=7, K=64, V=64, state=BF16, H=2, HV=2),
    Case("fp16-pool", B=7, K=128, V=128, state=FP16, dtype=FP16, raw=True, gates=FP16),
    Case("fp16-pool-v-first", B=7, K=64, V=64, state=FP16, dtype=FP16, v_first=True),
    Case("fp32-activations", B=7, K=128, V=128, HV=1, dtype=FP32, raw=True),
    Case("fp32-activations-bf16-pool", B=7, K=64, V=64, HV=1, dtype=FP32, state=BF16, v_first=True),
    Case("no-l2norm", B=7, K=64, V=64, l2norm=False, scale=0.5),
    Case("verify", B=5, T=4, K=128, V=128, raw=True, v_first=True),
    Case("verify-kv", B=5, T=4, K=128, V=128, H=1, HV=3, state=BF16),
    Case("verify-64", B=5, T=3, K=64, V=64, raw=True, state=FP16, v_first=True),
    Case("six-tokens", B=3, T=6, K=64, V=64, H=2, HV=4, raw=True),
    Case("packed", lengths=(0, 3, 1, 6, 2, 7, 5), K=128, V=128, before=1, after=2, index=torch.int32, raw=True),
    Case("packed-v-first", lengths=(1, 2, 4, 0, 5), K=64, V=64, v_first=True, dtype=FP32),
    Case("odd-sizes", B=7, K=48, V=20, raw=True, state=BF16),
    Case("odd-sizes-v-first", lengths=(1, 2, 0, 6, 5), K=100, V=77, H=2, HV=4, v_first=True, dtype=FP16),
    Case("largest", HV=1, B=1, T=5, K=256, V=256, raw=True, v_first=True),
    Case("rectangular", B=7, K=128, V=64, H=1, HV=3, dtype=FP32),
    Case("no-rows", B=0),
    Case("no-tokens", T=0),
]
ONE, ROWS = Case("", B=7, K=64, V=64, H=1, HV=2, raw=True), Case("", B=5, T=4, K=64, V=64, H=1, HV=2, v_first=True)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(backend, case):
    x, again = (ring_setup(case, backend.device, index=case.index, gap=3 * (case.K < 64)) for _ in range(2))
    o, stored = check_ring(case, x)
    tokens = [case.T] * case.B if case.lengths is None else case.lengths
    assert stored == [2 * n + 1 for n, t in enumerate(tokens) if t <= 6 < n % 7 + t]
    if case.lengths is not None:
        assert not o[:, case.outside(backend.device)].any()
    assert torch.equal(run_ring(case, again), o)
    for name in ("storage", *RINGS):
        assert torch.equal(bits(getattr(again, name)), bits(getattr(x, name)))


@pytest.mark.parametrize("R, m, T", [(1, 0, 1), (1, 1, 1), (64, 64, 1), (64, 33, 1), (64, 31, 64), (40, 37, 5), (40, 32, 1), (17, 17, 16)])
def test_sizes_of_rings(backend, R, m, T):
    """Entries past a warp's lanes and past what is folded at once; rows of many more tokens than are worked on at once."""
    case = Case("", B=1, T=T, K=64, V=64, HV=1, dtype=FP32, v_first=m % 2 == 0)
    _, stored = check_ring(case, ring_setup(case, backend.device, R=R, lengths=[m]))
    assert stored == ([1] if m + T > R else [])


@pytest.mark.parametrize("case", [ONE, ROWS], ids=["decode", "verify"])
def test_strong_decay(backend, case):
    """Gates down to -inf: what is wiped out is gone, and the rest as exact as without."""
    case = replace(case, dtype=FP32, raw=False, gates=FP32)
    x = ring_setup(case, backend.device)
    for ring in (x.ring_g, x.g):
        flat = ring.flatten(0, 1)
        flat[1::3] *= 300
        flat[2::5] = torch.where(flat[2::5].isnan(), flat[2::5], -float("inf"))
    check_ring(case, x)


def test_beta_and_zero_keys(backend):
    """beta=None is ones; a key of zeros writes nothing."""
    x = ring_setup(ROWS, backend.device)
    x.k[:, 1] = 0
    check_ring(ROWS, x, beta=None)


# ---- padding -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("case", [ONE, ROWS], ids=["decode", "verify"])
def test_padded_rows(backend, case, index):
    """Slots that are none, lengths outside 0..R, more tokens than entries: zeros, nothing read (tokens are NaN) or written."""
    slots = [3, -1, 0, 2**31 - 1, 9, 5, 7][: case.N]
    x = ring_setup(case, backend.device, R=3 + case.T, slots=slots, lengths=[1, 0, 2, 0, -1, 4, 2**31 - 1][: case.N], index=index)
    live = [True, False, False, False, False, True, False][: case.N]
    for n, alive in enumerate(live):
        if not alive:
            x.q[n] = x.k[n] = x.v[n] = x.a[n] = x.g[n] = float("nan")
    o, _ = check_ring(case, x, min_slot=1)
    assert [bool(row.any()) for row in o] == live and torch.isfinite(o.float()).all()


def test_more_tokens_than_entries(backend):
    case = Case("", lengths=(4, 3, 5), K=64, V=64, after=1)
    o, stored = check_ring(case, ring_setup(case, backend.device, R=4, lengths=[0, 2, 0]))
    assert stored == [3] and o[:, :7].any(-1).all() and not o[:, 7:].any()


# ---- memory ------------------------------------------------------------------------------------------------------


def test_grouped_gates(backend):
    case = replace(ONE, H=2, HV=4)
    x, y = (ring_setup(case, backend.device) for _ in range(2))
    want = run_ring(case, x)
    assert torch.equal(run_ring(case, y, a=y.a.unflatten(2, (2, 2)), b=y.b.unflatten(2, (2, 2))), want)


# ---- refusals ----------------------------------------------------------------------------------------------------

X = ring_setup(ONE)
REFUSALS = [
    (dict(ring_k=X.ring_k[:, :, :, :32]), r"ring_k: expected shape \[16, any, 1, 64\], got \[16, 6, 1, 32\]"),
    (dict(ring_k=X.ring_k[:4]), r"ring_k: expected shape \[16, any, 1, 64\]"),
    (dict(ring_k=X.ring_k.half()), "ring_k: expected fp32, got fp16"),
    (dict(ring_u=X.ring_u[:, :5]), r"ring_u: expected shape \[16, 6, 2, 64\], got \[16, 5, 2, 64\]"),
    (dict(ring_u=X.ring_u.transpose(2, 3)), "ring_u: expected contiguous slots"),
    (dict(ring_g=X.ring_g[..., :1]), r"ring_g: expected shape \[16, 6, 2\]"),
    ({n: getattr(X, n)[:, :1].expand(-1, 65, *[-1] * (getattr(X, n).dim() - 2)).contiguous() for n in RINGS}, "ring_k: expected 1 to 64 entries a slot, got 65"),
    ({n: getattr(X, n)[:, :0] for n in RINGS}, "ring_k: expected 1 to 64 entries a slot, got 0"),
    (dict(ring_lengths=X.lengths[:3]), r"ring_lengths: expected shape \[16\], got \[3\]"),
    (dict(ring_lengths=X.lengths.float()), "ring_lengths: expected int32 or int64, got fp32"),
    (dict(ssm_indices=X.slots[:2]), r"ssm_indices: expected shape \[7\], got \[2\]"),
    (dict(ssm_pool=X.pool.to(torch.float8_e4m3fn)), "ssm_pool: expected fp32 or bf16 or fp16, got fp8"),
    (dict(ssm_pool=X.pool.mT), "ssm_pool: expected contiguous slots"),
    (dict(A_log=None), "A_log: expected a tensor with the other raw gates"),
    (dict(g=X.g), "g: expected None with raw gates"),
    (dict(k=X.k[..., :32]), r"k: expected shape \[7, 1, 1, 64\]"),
    (dict(q=X.q.double()), "q: expected bf16 or fp16 or fp32"),
    (dict(ring_u=X.ring_u.clone().requires_grad_()), "ring_u: expected no gradient"),
    (dict(cu_seqlens=torch.zeros(8, dtype=torch.int64)), r"cu_seqlens: expected B = 1"),
]  # fmt: skip


@pytest.mark.parametrize("changes, message", REFUSALS, ids=lambda x: x[:40] if isinstance(x, str) else "")
def test_refusals(changes, message):
    x = ring_setup(ONE)
    before = x.storage.clone()
    with pytest.raises(RuntimeError, match=r"gdn\.fused_recurrent_gated_delta_rule_ring: .*" + message):
        run_ring(ONE, x, **changes)
    assert torch.equal(bits(x.storage), bits(before))
