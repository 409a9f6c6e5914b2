"""Rules that every op obeys about sequences: alone and in a batch, empty ones, none, and offsets of any kind. See rules.py."""

import torch
from calls import OFFSETS, Axis, Call, assert_same, assert_zero, fill
from rules import about, embedded, run_embedded, same_results

from gdn_ops.table import OPS

FAR = 2**31 - 1


def compare_rows(call: Call, other: Call, got: dict, rows: dict) -> None:
    """Row ``there`` of the other call is row ``here`` of this one: ``rows`` is {there: here}."""
    for key in call.written():
        axis = call.axis_of(key)
        for there, here in rows.items():
            if axis is None:
                for s in call.slots_of(here, key):
                    assert_same(call.slot(got[key], s), call.slot(call.base[key], s), f"{key}, slot {s} of row {here}")
            elif call.base[key].shape != (0,):
                part = other.part(other.axis_of(key), got[key], there)
                assert_same(part, call.part(axis, call.base[key], here), f"{key} of row {here}")


@about()
def batch_invariance(call: Call):
    """A sequence alone, and in any order of sequences, has the bits that it has in the batch."""
    if not call.has_rows or not call.rows:
        return
    some = range(call.rows) if call.rows <= 6 else (0, call.rows // 2, call.rows - 1)
    orders = [[r] for r in some] + [list(reversed(range(call.rows)))]
    for order in orders:

        def check(order=order):
            other = call.take(order)
            compare_rows(call, other, other.run(), dict(enumerate(order)))

        yield f"rows {order}", check


@about()
def nan_in_other_rows(call: Call):
    """A sequence has the bits that it has in the batch, whatever tokens and states the others have."""
    live = [r for r in range(call.rows if call.has_rows and call.rows else 0) if not call.offsets or call.lengths()[r]]
    for row in dict.fromkeys([live[-1], live[0]]) if len(live) > 1 else ():

        def check(row=row):
            others = [r for r in range(call.rows) if r != row]
            names = [n for n, t in call.tensors.items() if t.is_floating_point() and call.axis(n) and n not in call.outs]
            compare_rows(call, call, call.run(**{n: call.with_nan(n, others) for n in names}), {row: row})

        yield f"row {row}", check


@about()
def no_sequences(call: Call):
    if not call.has_rows:
        return

    def check():
        other = call.take([])
        got = other.run()
        for key in call.written():
            axis = call.axis_of(key)
            if axis is None:
                assert_same(got[key], call.tensors[key], f"{key}")
            elif call.base[key].shape != (0,):
                assert axis.kind != "row" or got[key].shape[axis.dim] == 0, f"{key}"
                assert_zero(got[key], f"{key}")

    yield "N = 0", check


@about(*OFFSETS)
def no_tokens(call: Call):
    """T = 0: states stay, final states are the initial ones."""
    axes = {n: a for n in call.tensors if (a := call.axis(n)) and a.kind in ("token", "chunk")} if call.offsets else {}
    if not call.offsets and "cu_seqlens" in call.accepts:
        axes = {n: Axis("token", 1) for n in (*call.activations, "h") if n in call.tensors and call.tensors[n].dim() >= 3}
        axes |= {n: Axis("token", 1) for n in call.outs if axes}
    if not axes:
        return

    def check():
        change = {n: call.tensors[n].narrow(a.dim, 0, 0) for n, a in axes.items() if not (call.offsets and a.kind == "chunk")}
        if call.offsets:
            change[call.offsets] = torch.zeros_like(call.tensors[call.offsets])
        got = call.run(**change)
        names = [o.name for o in OPS[call.op].outputs]
        for key in call.written():
            if key in call.pools:
                assert_same(got[key], call.tensors[key], key)
            elif not isinstance(key, str) and names[key] == "final_state":
                start = call.tensors.get("initial_state")
                assert_same(got[key], torch.zeros_like(got[key]) if start is None else start.float(), "final_state")
            else:
                assert_zero(got[key], f"{key}")

    yield "T = 0", check


def with_empty(call: Call, at: int) -> Call:
    """An empty sequence more, with slots of its own (NaN, new in each pool) and a state of its own."""
    kwargs = dict(call.kwargs)
    old = call.tensors[call.offsets]
    kwargs[call.offsets] = torch.cat([old[: at + 1], old[at:]])
    for p in call.shared:
        t = call.tensors[p]
        kwargs[p] = fill(torch.cat([t, t.narrow(call.slot_dim, 0, 1)], call.slot_dim), call.slot_dim, [t.shape[call.slot_dim]])
    for n, t in call.tensors.items():
        axis = call.axis(n)
        if axis and axis.kind == "row":
            new = t.narrow(axis.dim, min(at, t.shape[axis.dim] - 1), 1).clone()
            if n in call.slots:
                new.fill_(call.tensors[call.slots[n][0]].shape[call.slot_dim])
            kwargs[n] = torch.cat([t.narrow(axis.dim, 0, at), new, t.narrow(axis.dim, at, t.shape[axis.dim] - at)], axis.dim)
        elif axis and axis.kind == "chunk":
            kwargs[n] = torch.cat([t, t.narrow(axis.dim, 0, 1)], axis.dim)
    return Call(call.op, kwargs, call.backend)


@about(*OFFSETS)
def empty_sequences(call: Call):
    """Repeated offsets: the others keep their bits, the empty one its slot or its initial state."""
    for at in (0, call.rows // 2, call.rows) if call.offsets and call.has_rows else ():

        def check(at=at):
            other = with_empty(call, at)
            got = other.run()
            compare_rows(call, other, got, {r + (r >= at): r for r in range(call.rows)})
            for p in other.shared:
                assert_same(other.slot(got[p], -1), other.slot(other.tensors[p], -1), f"{p}: the empty sequence's slot")
            for i, out in enumerate(OPS[call.op].outputs):
                if out.name == "final_state" and call.base[i].shape != (0,):
                    start = other.tensors.get("initial_state")
                    assert_same(got[i][at], torch.zeros_like(got[i][at]) if start is None else start[at].float(), "its final state")

        yield f"before sequence {at}", check


@about(*OFFSETS)
def tokens_of_no_sequence(call: Call):
    """They give zeros, and may hold anything."""
    axes = {n: a for n in call.tensors if call.offsets and (a := call.axis(n)) and a.kind == "token"}
    outside = call.token_count - call.bounds[-1] if axes else 0
    for first in (0, 7) if outside else ():  # and tokens before the first sequence

        def check(first=first):
            used = call.bounds[-1]
            change = {call.offsets: call.tensors[call.offsets].clamp_min(first)} if first else {}
            clean = call.run(**change)
            for n, a in axes.items():
                t = call.tensors[n].clone(memory_format=torch.preserve_format)
                t.narrow(a.dim, used, outside).fill_(float("nan"))
                t.narrow(a.dim, 0, first).fill_(float("nan"))
                change[n] = t
            got = call.run(**change)
            for key in call.written():
                axis = call.axis_of(key)
                if axis and axis.kind == "token" and got[key].shape != (0,):
                    for part in (got[key].narrow(axis.dim, used, outside), got[key].narrow(axis.dim, 0, first)):
                        assert_zero(part, f"{key} of these tokens")
            same_results(call, got, clean)

        yield f"the last {outside}, the first {first}", check


@about(*OFFSETS)
def wrong_offsets(call: Call):
    """Clamped to [0, T]; an end before its start is an empty sequence; nothing else is touched."""
    if not call.offsets or not call.has_rows:
        return
    old, T = call.tensors[call.offsets], call.token_count
    end = [*call.bounds[:-1], T]

    def overlap():
        wrong = old.new_tensor([T // 2 + (-1) ** i * (T // 2 + i) for i in range(len(old))])  # back and forth, past both ends
        placed = {n: embedded(call.tensors[n], 64, list(call.tensors[n].stride())) for n in call.mutated}
        run_embedded(call, placed | {call.offsets: embedded(wrong, 1, [1])}, "guards")

    yield "back and forth", overlap

    pairs = {
        "past T": ([*end[:-1], T + 1000], end),
        "far past T": ([*end[:-1], FAR if old.dtype == torch.int32 else 2**40], end),
        "below 0": ([-5, *end[1:]], [0, *end[1:]]),
    }
    for what, (wrong, clamped) in pairs.items():

        def check(wrong=wrong, clamped=clamped):
            want = call.run(**{call.offsets: old.new_tensor(clamped)})
            placed = {n: embedded(call.tensors[n], 64, list(call.tensors[n].stride())) for n in call.mutated}
            placed[call.offsets] = embedded(old.new_tensor(wrong), 1, [1])
            same_results(call, run_embedded(call, placed, "guards"), want)

        yield what, check


RULES = [batch_invariance, nan_in_other_rows, no_sequences, no_tokens, empty_sequences, tokens_of_no_sequence, wrong_offsets]
