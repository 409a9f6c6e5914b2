"""Rules that every op obeys about slots: which are read and written, and what makes a row padding. See rules.py."""

import torch
from calls import SKIPS, SLOTS, Call, assert_same, fill
from rules import about, same_results

FAR = 2**31 - 1
PADDINGS = tuple(n for n in SLOTS if n not in SKIPS)


@about(*PADDINGS)
def nan_in_unused_slots(call: Call):
    unused = {p: s for p in call.pools if p in call.slots.values() and (s := call.unused(p))}
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
            got = call.run(**{n: torch.full_like(call.tensors[n], value) for n in call.paddings})
            for key in call.written():
                if key in call.pools:
                    assert_same(got[key], call.tensors[key], key)
                else:
                    assert_same(got[key], torch.zeros_like(got[key]), f"{key}")

        yield f"slots {value}", check


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
            part = call.part(axis, got[key], r)
            want = call.tensors[key] if key in call.pools else torch.zeros_like(got[key])
            assert_same(part, call.part(axis, want if r == row else call.base[key], r), f"{key}, row {r}")


@about(*PADDINGS)
def padded_rows(call: Call):
    """One row is padding, for any reason that there may be."""
    for row in range(call.rows if call.paddings else 0):
        changes = {}
        for name in call.paddings:
            size = call.tensors[call.slots[name]].shape[call.slot_dim]
            for slot in (-1, size) if row else (-1, size, -FAR, FAR):
                changes[f"{name} {slot}"] = {name: with_slot(call, name, row, slot)}
            for slot in () if row else (2**32, 2**40, -(2**33) + 1, 2**63 - 1):
                changes[f"{name} {slot}"] = {name: with_slot(call, name, row, slot, torch.int64)}
        if (name := "num_accepted_tokens") in call.tensors:
            for count in (0, -1, call.columns + 1, FAR):
                changes[f"{name} {count}"] = {name: with_slot(call, name, row, count)}
        if "cache_seqlens" in call.tensors:
            changes["cache_seqlens -1"] = {"cache_seqlens": with_slot(call, "cache_seqlens", row, -1)}
        for what, change in changes.items():
            yield f"row {row}: {what}", lambda change=change, row=row: expect_padded(call, call.run(**change), row)


@about(*SKIPS)
def skipped_stores(call: Call):
    for name in [n for n in call.slots if n in SKIPS]:
        pool = call.slots[name]
        size = call.tensors[pool].shape[call.slot_dim]
        for slot in (-1, size, FAR):

            def check(name=name, pool=pool, slot=slot):
                want = call.run(**{name: with_slot(call, name, 0, -1)})
                got = call.run(**{name: with_slot(call, name, 0, slot)})
                same_results(call, got, want)
                for key in call.written() if pool in call.mutated else ():
                    if key != pool:
                        assert_same(got[key], call.base[key], f"{key}")

            yield f"{name} {slot}", check


@about(*PADDINGS)
def smallest_slot(call: Call):
    """min_slot 1: what names slot 0 of a pool is padding, whatever the slot holds."""
    if "min_slot" not in call.accepts or not call.paddings:
        return
    names = {n: p for n, p in call.slots.items() if n != "checkpoint_indices" and n != "intermediate_indices"}

    def check():
        change, skip = {}, {}
        for n in names:
            t = call.tensors[n].clone()
            live = t[t >= 0]
            if n in call.paddings:
                t = torch.where(t == 0, int(live[0]), torch.where(t == live[0], 0, t)) if len(live) else t
            change[n], skip[n] = t, torch.where(t == 0, -1, t)
        want = call.run(**skip)
        pools = {p: fill(call.tensors[p], call.slot_dim, [0]) for p in set(names.values())}
        before = {p: t.clone() for p, t in pools.items()}
        got = call.run(**change, **pools, min_slot=1)
        for p in pools:
            assert_same(call.slot(got[p], 0), call.slot(before[p], 0), f"{p}, slot 0")
            call.slot(got[p], 0).copy_(call.slot(want[p], 0))
        same_results(call, got, want)

    yield "slot 0 holds NaN", check


@about("has_initial_state")
def no_initial_state(call: Call):
    """Exact zeros instead of what a slot holds."""
    if "has_initial_state" not in call.tensors:
        return
    flags = call.tensors["has_initial_state"].tolist()
    pool = next(p for n, p in call.slots.items() if n in call.paddings)
    fresh = [s for r, flag in enumerate(flags) if not flag for s in call.slots_of(r, pool)]
    others = {s for r, flag in enumerate(flags) if flag for s in call.slots_of(r, pool)}
    fresh = [s for s in fresh if s not in others]
    if fresh:

        def check():
            before = fill(call.tensors[pool], call.slot_dim, fresh)
            got = call.run(**{pool: before.clone()})
            for s in fresh if pool in call.mutated else ():
                mine = call.slot(got[pool], s)
                if torch.equal(call.slot(call.base[pool], s), call.slot(call.tensors[pool], s)):  # an empty sequence: kept
                    assert_same(mine, call.slot(before, s), f"{pool}, slot {s}")
                    mine.copy_(call.slot(call.base[pool], s))
            same_results(call, got)

        yield f"NaN in slots {fresh}", check


RULES = [nan_in_unused_slots, all_rows_padded, padded_rows, skipped_stores, smallest_slot, no_initial_state]
