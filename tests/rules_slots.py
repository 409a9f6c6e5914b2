"""Rules that every op obeys about slots: which are read and written, and what makes a row padding. See rules.py."""

import torch
from calls import SKIPS, SLOTS, Call, assert_same, assert_zero, fill
from rules import about, same_results

FAR = 2**31 - 1
PADDINGS = tuple(n for n in SLOTS if n not in SKIPS)


@about(*PADDINGS)
def nan_in_unused_slots(call: Call):
    unused = {p: s for p in call.shared if (s := call.unused(p))}
    if unused:

        def check():
            pools = {p: fill(call.tensors[p], call.slot_dim, s) for p, s in unused.items()}
            before = {p: t.clone() for p, t in pools.items()}
            got = call.run(**pools)
            for p, slots in unused.items():
                for s in slots:
                    assert_same(call.slot(got[p], s), call.slot(before[p], s), f"{p}, slot {s}")
                    call.slot(got[p], s).copy_(call.slot(call.base[p], s))
            same_results(call, got)

        yield f"{unused}", check


def with_slot(call: Call, name: str, row: int, slot: int, dtype=None) -> torch.Tensor:
    t = call.tensors[name].to(dtype or call.tensors[name].dtype).clone()
    t[row] = slot
    return t


@about(*PADDINGS)
def all_rows_padded(call: Call):
    for value in (-1, FAR) if call.paddings else ():

        def check(value=value):
            slots = {n: call.tensors[n].new_full([1] * call.tensors[n].dim(), value) for n in call.paddings}
            got = call.run(**{n: t.expand(call.tensors[n].shape) for n, t in slots.items()})
            for key in call.written():
                if key in call.pools:
                    assert_same(got[key], call.tensors[key], key)
                else:
                    assert_zero(got[key], f"{key}")

        yield f"slots {value}, stride 0", check


def expect_padded(call: Call, got: dict, row: int) -> None:
    """The row became padding: zeros, its slots as before the call; the others keep their bits."""
    for key in call.written():
        if key in call.pools and call.axis(key) is None:
            mine = set(call.slots_of(row, key)) - {s for r in range(call.rows) if r != row for s in call.slots_of(r, key)}
            for s in range(got[key].shape[call.slot_dim]):
                want = call.tensors if s in mine else call.base
                assert_same(call.slot(got[key], s), call.slot(want[key], s), f"{key}, slot {s}")
            continue
        axis = call.axis_of(key)
        for r in range(call.rows) if call.base[key].shape != (0,) else ():
            part, what = call.part(axis, got[key], r), f"{key}, row {r}"
            if r == row and key not in call.pools:
                assert_zero(part, what)
            else:
                assert_same(part, call.part(axis, (call.tensors if r == row else call.base)[key], r), what)


@about(*PADDINGS)
def padded_rows(call: Call):
    """One row is padding, for any reason that there may be, and its tokens are NaN."""
    sizes = {n: call.tensors[call.slots[n][0]].shape[call.slot_dim] for n in call.paddings}
    reasons = []  # slots in all pools of a layer at once: a row is padding in all of them or in none
    for slot in (-1, 0, -FAR, FAR, 2**32, 2**40, -(2**33) + 1, 2**63 - 1) if sizes else ():
        dtype = torch.int64 if abs(slot) > FAR else None
        reasons += [(f"slot {slot or 'past the pool'}", {n: (slot or size, dtype) for n, size in sizes.items()})]
    reasons += [(f"{n} {slot}", {n: (slot, None)}) for n in sizes for slot in (-1, FAR) if len(sizes) > 1]  # in one pool alone
    if "num_accepted_tokens" in call.tensors and sizes:
        reasons += [(f"{n} accepted", {"num_accepted_tokens": (n, None)}) for n in (-1, call.columns + 1, FAR)]
        if "ring_lengths" not in call.tensors:  # a ring may keep none
            reasons.append(("0 accepted", {"num_accepted_tokens": (0, None)}))
    if "cache_seqlens" in call.tensors and sizes:
        reasons += [("-1 tokens before", {"cache_seqlens": (-1, None)})]
    for i, (what, values) in enumerate(reasons):
        row = (i // call.rows + i) % call.rows  # every row, and each of them for other reasons
        row = 0 if "num_accepted_tokens" in values else row  # behind whose slots are live ones

        def check(row=row, values=values):
            change = {n: call.with_nan(n, [row]) for n in call.activations if call.axis(n) and n not in call.mutated}
            expect_padded(call, call.run(**change, **{n: with_slot(call, n, row, *value) for n, value in values.items()}), row)

        yield f"row {row}: {what}", check


@about(*SKIPS)
def skipped_stores(call: Call):
    for name in [n for n in call.slots if n in SKIPS]:
        pools = call.slots[name]
        size = call.tensors[pools[0]].shape[call.slot_dim]
        for slot in (-1, size, FAR):

            def check(name=name, pools=pools, slot=slot):
                want = call.run(**{name: with_slot(call, name, 0, -1)})
                got = call.run(**{name: with_slot(call, name, 0, slot)})
                same_results(call, got, want)
                for key in call.written() if pools[0] in call.mutated else ():
                    if key not in pools:
                        assert_same(got[key], call.base[key], f"{key}")

            yield f"{name} {slot}", check


@about(*PADDINGS)
def smallest_slot(call: Call):
    """min_slot 1: what names slot 0 of a pool is padding, whatever the slot holds."""
    if "min_slot" not in call.accepts or not call.paddings:
        return
    names = [n for n in call.slots if n != "intermediate_indices"]

    def check():
        change, skip = {}, {}
        for n in names:
            t = call.tensors[n].clone()
            live = t[t >= 0]
            if n in call.paddings:
                t = torch.where(t == 0, int(live[0]), torch.where(t == live[0], 0, t)) if len(live) else t
            change[n], skip[n] = t, torch.where(t == 0, -1, t)
        want = call.run(**skip)
        pools = {p: fill(call.tensors[p], call.slot_dim, [0]) for n in names for p in call.slots[n]}
        before = {p: t.clone() for p, t in pools.items()}
        got = call.run(**change, **pools, min_slot=1)
        for p in pools:
            assert_same(call.slot(got[p], 0), call.slot(before[p], 0), f"{p}, slot 0")
            call.slot(got[p], 0).copy_(call.slot(want[p], 0))
        same_results(call, got, want)

    yield "below 0 as 0", lambda: same_results(call, call.run(min_slot=-9), call.run(min_slot=0))
    yield "slot 0 holds NaN", check


@about("has_initial_state")
def no_initial_state(call: Call):
    """Exact zeros instead of what a slot holds."""
    if "has_initial_state" not in call.tensors:
        return
    flags = call.tensors["has_initial_state"].tolist()
    fresh = {}
    for pool in dict.fromkeys(p for n in call.paddings for p in call.slots[n]):
        slots = [{s for r, flag in enumerate(flags) if flag == given for s in call.slots_of(r, pool)} for given in (False, True)]
        if slots[0] - slots[1]:
            fresh[pool] = sorted(slots[0] - slots[1])

    def check():
        pools = {p: fill(call.tensors[p], call.slot_dim, s) for p, s in fresh.items()}
        before = {p: t.clone() for p, t in pools.items()}
        got = call.run(**pools)
        for p in fresh:
            for s in fresh[p] if p in call.mutated else ():
                if torch.equal(call.slot(call.base[p], s), call.slot(call.tensors[p], s)):  # an empty sequence: kept
                    assert_same(call.slot(got[p], s), call.slot(before[p], s), f"{p}, slot {s}")
                    call.slot(got[p], s).copy_(call.slot(call.base[p], s))
        same_results(call, got)

    if fresh:
        yield f"NaN in {fresh}", check


RULES = [nan_in_unused_slots, all_rows_padded, padded_rows, skipped_stores, smallest_slot, no_initial_state]
