"""Inputs of the ops on frozen states and rings: the tokens of tests/recurrent_cases.py, and rings around them."""

import torch
from harness import assert_close, guarded, seeded
from recurrent_cases import RMS, arguments, bits, compare, setup

import gdn_ops
from gdn_ops import reference

RINGS = ("ring_k", "ring_u", "ring_g")


def ring_setup(case, device="cpu", R=6, lengths=None, gap=0, index=torch.int64, **options):
    """As ``setup``; and rings, NaN but for the entries that count, of which row n has ``lengths[n]``."""
    x = setup(case, device, gap=gap, index=index, **options)
    slots, gen = len(x.pool), seeded(5)
    counts = [n % (R + 1) for n in range(case.N)] if lengths is None else lengths
    x.lengths = torch.full((slots,), R, dtype=index)
    for slot, m in zip(x.slots.tolist(), counts):
        if 0 <= slot < slots:
            x.lengths[slot] = m
    rings = dict(
        ring_k=torch.nn.functional.normalize(torch.randn(slots, R, case.H, case.K, generator=gen), dim=-1),
        ring_u=torch.randn(slots, R, case.HV, case.V, generator=gen),
        ring_g=-0.3 * torch.randn(slots, R, case.HV, generator=gen).abs(),
    )
    used = [s for s in x.slots.tolist() if 0 <= s < slots]
    for name, ring in rings.items():
        for slot in range(slots):
            ring[slot, x.lengths[slot] if slot in used and 0 <= x.lengths[slot] <= R else 0 :] = float("nan")
        wide = guarded(torch.nn.functional.pad(ring.flatten(1), (0, gap), value=float("nan")), device)
        setattr(x, name, wide[:, : ring[0].numel()].unflatten(1, ring.shape[1:]))
    x.lengths = guarded(x.lengths, device)
    return x


def ring_arguments(case, x, options):
    rings = {n: getattr(x, n) for n in RINGS} | dict(ring_lengths=x.lengths)
    return arguments(case, x, rings | options)


def run_ring(case, x, **options):
    return gdn_ops.fused_recurrent_gated_delta_rule_ring(**ring_arguments(case, x, options))


def check_ring(case, x, **options):
    """Runs the step; compares the output, stored states and new entries with the reference, and everything else, bit by bit, with
    what was. Returns o and the slots whose state was stored."""
    want_o, want_pool, *want_rings = reference.fused_recurrent_gated_delta_rule_ring(**ring_arguments(case, x, options))
    before = {n: getattr(x, n).clone() for n in ("storage", "lengths", *RINGS)}
    o = run_ring(case, x, **options)
    assert o.dtype == case.dtype and o.is_contiguous()
    assert_close(o, want_o, RMS[case.dtype], what="o")
    stored = compare(x.pool, x.storage, before["storage"], want_pool, "states")
    for name, want in zip(RINGS, want_rings):
        got, old = getattr(x, name), before[name]
        flat = lambda t: t.flatten(0, 1)  # noqa: E731  [slots * R, ...]: one row an entry
        pairs = zip(flat(want), flat(old).cpu().double())
        new = [i for i, (w, b) in enumerate(pairs) if not torch.equal(bits(w), bits(b))]
        assert_close(flat(got)[new], flat(want)[new], RMS[torch.float32], what=name)
        rest = [i for i in range(len(flat(got))) if i not in set(new)]
        assert torch.equal(bits(flat(got)[rest]), bits(flat(old)[rest])), f"{name}: another entry was written"
    assert torch.equal(x.lengths, before["lengths"])
    return o, stored
