"""Decode and verify over several cycles of the rings, with roll-back and commits, against the plain token loop.

Bounds: a ring sums the same products as the plain loop, in float32 and another order. Over the 20 to 40 tokens here the
difference stays below 16 roundings (2^-20) of the largest output or state; a wrong token, decay or slot makes errors of 1e-2.
"""

from types import SimpleNamespace

import pytest
import torch
from harness import assert_close
from recurrent_cases import FP32, Case, bits, run_update
from ring_cases import RINGS, ring_setup, run_ring

import gdn_ops
from gdn_ops import reference

BOUND = 2.0**-20
CASE = Case("", B=5, K=64, V=64, H=1, HV=2, dtype=FP32, raw=True)


def part(x, start, stop, **more):
    """The tokens [start, stop) of every row."""
    named = {n: getattr(x, n)[:, start:stop] for n in ("q", "k", "v", "g", "beta", "a", "b")}
    return SimpleNamespace(**(vars(x) | named | more))


def advance(x, R, **options):
    gdn_ops.advance_rings(x.lengths, x.slots, R, **options)


@pytest.mark.parametrize("v_first", [False, True], ids=["kv", "vk"])
@pytest.mark.parametrize("K, HV, R", [(64, 1, 4), (128, 2, 5), (48, 3, 4)])
def test_decode_is_the_plain_update(backend, K, HV, R, v_first):
    """Rows at different points of their cycles, every one due several times; one row is padding all along."""
    case = Case("", B=4, T=3 * R + 2, K=K, V=K, H=1, HV=HV, dtype=FP32, raw=True, v_first=v_first)
    slots = [4, 0, -1, 2]
    x, plain = (ring_setup(case, backend.device, R=R, slots=slots, lengths=[0] * 4) for _ in range(2))
    start = [0, 2, 0, 1]  # these many tokens are worked off before
    for t in range(max(start)):
        rows = torch.tensor([s if t < n else -1 for s, n in zip(slots, start)], device=backend.device)
        run_ring(case, part(x, t, t + 1), ssm_indices=rows)
        gdn_ops.advance_rings(x.lengths, rows, R)
        run_update(case, part(plain, t, t + 1), ssm_indices=rows)
    due = 0
    for t in range(max(start), case.T):
        before = x.pool.clone()
        got, want = run_ring(case, part(x, t, t + 1)), run_update(case, part(plain, t, t + 1))
        assert_close(got, want, BOUND, what=f"token {t}")
        full = [s for s in slots if s >= 0 and x.lengths[s] == R]
        changed = [s for s in range(len(x.pool)) if not torch.equal(x.pool[s], before[s])]
        assert changed == sorted(full)
        due += len(full)
        advance(x, R)
    assert due >= 6
    gdn_ops.commit_accepted(x.pool, x.ring_k, x.ring_u, x.ring_g, x.lengths[x.slots.clamp_min(0)], x.slots, v_first)
    assert_close(x.pool, plain.pool, BOUND, what="states")


@pytest.mark.parametrize("packed", [False, True], ids=["rows", "packed"])
@pytest.mark.parametrize("v_first", [False, True], ids=["kv", "vk"])
def test_verify_and_roll_back(backend, packed, v_first):
    """Drafts of four tokens of which 0 to 4 stay, in every order: outputs of the accepted tokens alone, in float64."""
    R, T, steps = 7, 4, 6
    case = Case("", B=5, T=T * steps, K=64, V=64, H=1, HV=2, dtype=FP32, raw=True, v_first=v_first)
    x = ring_setup(case, backend.device, R=R, lengths=[0] * 5)
    kept = [[] for _ in range(case.B)]  # which tokens of each row were accepted
    h0 = x.pool[x.slots].clone()
    for step in range(steps):
        now = part(x, T * step, T * step + T)
        accepted = [(n + step) % (T + 1) for n in range(case.B)]
        counts = torch.tensor(accepted, device=backend.device, dtype=torch.int32)
        if packed:
            flat = {n: getattr(now, n).flatten(0, 1)[None] for n in ("q", "k", "v", "g", "beta", "a", "b")}
            cu = torch.arange(0, T * case.B + 1, T, device=backend.device)
            o = run_ring(case, SimpleNamespace(**(vars(now) | flat)), cu_seqlens=cu).view(case.B, T, 2, 64)
            advance(x, R, tokens=T * case.B, num_accepted_tokens=counts, cu_seqlens=cu)
        else:
            o = run_ring(case, now)
            advance(x, R, tokens=T, num_accepted_tokens=counts)
        for n in range(case.B):
            at = [*kept[n], *range(T * step, T * step + T)]
            names = ("A_log", "a", "b", "dt_bias")
            g, beta = reference.fused_gdn_gating(*(getattr(x, i)[n : n + 1, at].cpu() if i in "ab" else getattr(x, i).cpu() for i in names))
            q, k, v = (getattr(x, i)[n : n + 1, at] for i in "qkv")
            want, _ = reference.gated_delta_rule(q, k, v, g, beta, None, h0[n : n + 1], None, True, v_first)
            assert_close(o[n], want[0, -T:], 4e-6, what=f"step {step}, row {n}")
            kept[n] += range(T * step, T * step + accepted[n])
    assert min(map(len, kept)) >= 10


def test_output_only_verify(backend):
    """A verify whose lengths are not moved on leaves the true state as it was; its accepted entries are committed at once."""
    R = 8
    case = Case("", B=4, T=4, K=64, V=64, H=1, HV=2, dtype=FP32, raw=True)
    x, plain = (ring_setup(case, backend.device, R=R, lengths=[0, 2, 3, 4]) for _ in range(2))
    gdn_ops.commit_accepted(plain.pool, plain.ring_k, plain.ring_u, plain.ring_g, plain.lengths[plain.slots], plain.slots)
    first, second = run_ring(case, x), run_ring(case, x)
    assert torch.equal(first, second)
    accepted = torch.tensor([1, 4, 2, 3], device=backend.device)
    gdn_ops.commit_accepted(x.pool, x.ring_k, x.ring_u, x.ring_g, x.lengths[x.slots] + accepted, x.slots)
    for n, count in enumerate(accepted.tolist()):
        rows = torch.where(torch.arange(4, device=backend.device) == n, plain.slots, -1)
        run_update(case, part(plain, 0, count), ssm_indices=rows)
    assert_close(x.pool, plain.pool, BOUND, what="states")


# ---- lengths -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("packed", [False, True], ids=["rows", "packed"])
@pytest.mark.parametrize("counts", [None, (3, 0, 2, 5, -1, 1, 3, 2**31 - 1, 3)], ids=["all", "accepted"])
def test_lengths(backend, packed, counts, index):
    """Every kind of row: with room, due, full, padded, with a wrong length, and with a wrong count."""
    R = 6
    make = lambda values: torch.tensor(values, dtype=index, device=backend.device)  # noqa: E731
    lengths = torch.stack([make([0, 3, 4, 6, 6, 2, 7, -1, 1, 5, 2**31 - 1]), make([77] * 11)], 1)[:, 0]
    slots = make([0, 1, 2, 3, 4, -1, 6, 7, 11])
    options = dict(tokens=3, num_accepted_tokens=None if counts is None else make(counts), min_slot=1)
    if packed:
        options |= dict(tokens=20, cu_seqlens=make([-4, 3, 6, 6, 9, 16, 17, 18, 19, 400]))
    want = reference.advance_rings(lengths, slots, R, **options)
    gdn_ops.advance_rings(lengths, slots, R, **options)
    assert lengths.tolist() == want.tolist()
    assert lengths[0] == 0 and lengths[6:8].tolist() == [7, -1]
    if not packed and counts is None:
        assert lengths.tolist() == [0, 6, 3, 3, 3, 2, 7, -1, 1, 5, 2**31 - 1]


def test_lengths_of_rows_without_bounds(backend):
    lengths, cu = (torch.tensor(v, device=backend.device) for v in ([0, 1, 2], [0, 1, 1, 3]))
    gdn_ops.advance_rings(lengths, torch.arange(3, device=backend.device), 3, cu_seqlens=cu)
    assert lengths.tolist() == [1, 1, 2]
    gdn_ops.advance_rings(lengths, torch.arange(3, device=backend.device), 3)
    assert lengths.tolist() == [2, 2, 3]
    gdn_ops.advance_rings(lengths, torch.arange(0, device=backend.device), 3)
    assert lengths.tolist() == [2, 2, 3]


# ---- commits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("K, V", [(128, 128), (64, 64), (100, 33), (256, 256)])
@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("v_first", [False, True], ids=["kv", "vk"])
def test_commit(backend, K, V, state, v_first):
    """Nothing, one, some and all entries; padding, and wrong counts: only what is due is touched, NaN behind it not read."""
    case = Case("", B=7, K=K, V=V, H=1, HV=2 if K < 256 else 1, state=state, v_first=v_first)
    slots, entries = [0, 3, 5, -1, 16, 8, 9], [0, 1, 20, 2, 3, 21, -1]
    x = ring_setup(case, backend.device, R=20, slots=slots, lengths=[0, 1, 20, 0, 0, 5, 5], gap=5)
    rings = [getattr(x, n) for n in RINGS]
    options = dict(ssm_indices=x.slots, state_v_first=v_first)
    counts = torch.tensor(entries, device=backend.device, dtype=torch.int32)
    want = reference.commit_accepted(x.pool, *rings, counts, **options)
    before, old = x.pool.clone(), x.storage.clone()
    gdn_ops.commit_accepted(x.pool, *rings, counts, **options)
    changed = [s for s in range(len(x.pool)) if not torch.equal(bits(x.pool[s]), bits(before[s]))]
    assert changed == [3, 5]
    assert_close(x.pool[changed], want[changed], {torch.float32: 1e-6, torch.bfloat16: 2.5e-3, torch.float16: 4e-4}[state])
    x.pool.copy_(before)
    assert torch.equal(bits(x.storage), bits(old))


def test_refusals():
    x = ring_setup(CASE)
    rings = [getattr(x, n) for n in RINGS]
    for change, message in (
        (dict(num_entries=x.slots[:2]), r"ssm_indices: expected shape \[2\], got \[5\]"),
        (dict(num_entries=x.slots.float()), "num_entries: expected int32 or int64"),
        (dict(state_v_first=True, ssm_pool=x.pool[..., :32].contiguous()), r"ssm_pool: expected shape \[any, 2, 64, 64\]"),
        (dict(ring_u=x.ring_u[:, :, :1]), r"ring_g: expected shape \[12, 6, 1\]|ssm_pool: expected shape"),
        (
            dict(ring_u=torch.zeros(12, 6, 2, 300), ssm_pool=torch.zeros(12, 2, 64, 300)),
            "ring_u: expected a head size V of 1 to 256, got 300",
        ),
        (dict(ring_k=torch.zeros(12, 6, 3, 64)), "ring_u: expected heads in a multiple of ring_k's, got 2"),
    ):
        args = dict(zip(("ssm_pool", *RINGS, "num_entries", "ssm_indices"), (x.pool, *rings, x.slots, x.slots))) | change
        with pytest.raises(RuntimeError, match=r"gdn\.commit_accepted: .*" + message):
            gdn_ops.commit_accepted(**args)
    for change, message in (
        (dict(ring_size=0), "ring_size: expected 1 to 64, got 0"),
        (dict(ring_size=65), "ring_size: expected 1 to 64, got 65"),
        (dict(tokens=-1), "tokens: expected at least 0, got -1"),
        (dict(ring_lengths=x.lengths.float()), "ring_lengths: expected int32 or int64, got fp32"),
        (dict(num_accepted_tokens=x.slots[:1]), r"num_accepted_tokens: expected shape \[5\], got \[1\]"),
        (dict(cu_seqlens=x.slots), r"cu_seqlens: expected shape \[6\], got \[5\]"),
    ):
        with pytest.raises(RuntimeError, match=r"gdn\.advance_rings: .*" + message):
            gdn_ops.advance_rings(**dict(ring_lengths=x.lengths, ssm_indices=x.slots, ring_size=6) | change)
