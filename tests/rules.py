"""Rules that every op obeys about memory: strides, alignment, what may be read and written.

A rule is a generator over what it checks of a call: ``(words, function that checks)``, nothing for a call that it is not about.
``@about(names)``: it is checked for every op that has such an argument; without names, for every op. tests/calls.py explains
what arguments are; rules_slots.py and rules_sequences.py hold the other rules, test_rules.py runs them all.
"""

import torch
from calls import FLAGS, NUMBERS, OFFSETS, POOLS, SLOTS, STATES, Call, assert_same, poison
from harness import assert_close

GATES = ("g", "beta", "a", "b", "A_log", "dt_bias")


def about(*names):
    def mark(rule):
        rule.about = names
        return rule

    return mark


def same_results(call: Call, got: dict, want: dict | None = None, exact: bool = True) -> None:
    """Everything a call leaves, bit by bit; where another variant of a kernel may have run, within the rounding of matrix products."""
    want = want or call.base
    for key in call.written():
        if exact or call.backend == "cpu" or not got[key].is_floating_point():
            assert_same(got[key], want[key], str(key))
        else:
            assert_close(got[key], want[key], 1e-2, what=str(key))


def embedded(t: torch.Tensor, before: int, strides: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """t with other strides, cut from a buffer of poison that begins ``before`` elements earlier; and that buffer."""
    span = sum((n - 1) * s for n, s in zip(t.shape, strides)) + 1 if t.numel() else 1
    buffer = torch.full((before + span + 64,), poison(t.dtype), dtype=t.dtype, device=t.device)
    return buffer.as_strided(t.shape, strides, before).copy_(t), buffer


def run_embedded(call: Call, placed: dict, what: str) -> dict:
    """A call on embedded arguments, which leaves the poison around them as it was."""
    before = {n: buffer.clone() for n, (_, buffer) in placed.items()}
    got = call.run(**{n: view for n, (view, _) in placed.items()})
    for n, (view, buffer) in placed.items():
        if n in call.mutated:
            before[n].as_strided(view.shape, view.stride(), view.storage_offset()).copy_(view)
        assert_same(buffer, before[n], f"{what}: {n}")
    return got


def contiguous_strides(shape) -> list[int]:
    strides = [1]
    for n in reversed(shape[1:]):
        strides.insert(0, strides[0] * max(n, 1))
    return strides[: len(shape)]


def column_slice(t: torch.Tensor, columns_from: int, bytes_: int) -> tuple[torch.Tensor, torch.Tensor]:
    """t's dimensions from ``columns_from`` on as columns of wider rows, which start on multiples of so many bytes, and no more."""
    unit = max(1, bytes_ // t.element_size())
    inner = contiguous_strides(t.shape[columns_from:])
    width = t[(0,) * columns_from].numel() + unit
    width += -width % unit if bytes_ == 16 else (unit - width) % (2 * unit)
    width += -width % 16 if bytes_ == 16 else 0  # multiples of 16 elements: the alignment that hints promise
    outer = contiguous_strides((*t.shape[:columns_from], width))[:-1]
    return embedded(t, 64 + (0 if bytes_ == 16 else unit), outer + inner)


def row_dims(call: Call, name: str) -> int:
    """How many leading dimensions index rows of a projection: batch and tokens."""
    t = call.tensors[name]
    axis = call.axis(name)
    if axis.kind == "token":
        return 1 if call.kwargs.get("channels_first") else axis.dim + 1
    return min(2 if t.dim() >= 4 or t.dim() == 3 and name not in ("x", "z") else 1, t.dim() - 1)


@about()
def strides_of_activations(call: Call):
    names = [n for n in call.activations if call.axis(n) is not None]
    for alignment in (16, 8, 4, 2) if names and call.backend != "cpu" else (16, 2) if names else ():  # a twin takes any alike

        def check(alignment=alignment):
            placed = {n: column_slice(call.tensors[n], row_dims(call, n), alignment) for n in names}
            same = alignment == 16 and all(call.tensors[n].shape[-1] % 16 == 0 for n in names)
            same_results(call, run_embedded(call, placed, "gaps"), exact=same)

        yield f"column slices on {alignment} bytes", check


@about(*GATES)
def strides_of_gates(call: Call):
    gates = [n for n in GATES if n in call.tensors]
    for what, step in (("every other element", 2), ("heads first", 0)) if gates else ():

        def check(step=step):
            placed = {}
            for n in gates:
                t = call.tensors[n]
                strides = [s * step for s in contiguous_strides(t.shape)] if step else contiguous_strides(t.shape[::-1])[::-1]
                placed[n] = embedded(t, 3, strides)
            same_results(call, run_embedded(call, placed, "gaps"))

        yield f"gates: {what}", check

    def broadcast():
        first = {n: call.tensors[n][(slice(0, 1),) * call.tensors[n].dim()].clone() for n in gates}
        views = {n: t.expand(call.tensors[n].shape) for n, t in first.items()}
        same_results(call, call.run(**views), call.run(**{n: t.contiguous() for n, t in views.items()}))

    if gates:
        yield "gates: one value, stride 0", broadcast


@about(*OFFSETS, *NUMBERS, *SLOTS)
def strides_of_indices(call: Call):
    for dtype, step in ((torch.int32, 1), (torch.int32, 2), (torch.int64, 1), (torch.int64, 7)) if call.indices else ():

        def check(dtype=dtype, step=step):
            tensors = {n: call.tensors[n].to(dtype) for n in call.indices} | {n: call.tensors[n] for n in FLAGS if n in call.tensors}
            placed = {n: embedded(t, 1, [s * step for s in contiguous_strides(t.shape)]) for n, t in tensors.items()}
            got = run_embedded(call, placed, "indices")
            same_results(call, {k: t if t.is_floating_point() else t.to(call.base[k].dtype) for k, t in got.items()})

        yield f"indices in {str(dtype)[6:]}, stride {step}", check


@about(*POOLS, *STATES[:2])
def strides_of_pools(call: Call):
    pools = call.pools + [n for n in STATES[:2] if n in call.tensors]
    for gap in (1, 64) if pools else ():

        def check(gap=gap):
            placed = {}
            for n in pools:
                t = call.tensors[n]
                slot = contiguous_strides(t.shape[call.slot_dim + 1 :])
                size = t.select(call.slot_dim, 0)[(0,) * call.slot_dim].numel() + gap
                outer = [s * size for s in contiguous_strides(t.shape[: call.slot_dim + 1])]
                placed[n] = embedded(t, 64, outer + slot)
            same_results(call, run_embedded(call, placed, "gaps"), exact=gap == 64)

        yield f"{gap} elements between slots", check


@about()
def poison_around_inputs(call: Call):
    def check():
        same_results(call, run_embedded(call, {n: embedded(t, 64, list(t.stride())) for n, t in call.tensors.items()}, "guards"))

    yield "NaN before and after every argument", check


@about()
def only_what_the_schema_says(call: Call):
    def check():
        got = call.run()
        for n, t in call.tensors.items():
            if n not in call.mutated:
                assert_same(got[n], t, n)
        memory = [t.untyped_storage().data_ptr() for t in got.values() if t.numel()]
        assert all(memory.count(t.untyped_storage().data_ptr()) == 1 for k, t in got.items() if not isinstance(k, str) and t.numel())

    yield "arguments that are not changed", check


@about()
def repeats(call: Call):
    def check():
        same_results(call, call.run())

    yield "again", check


RULES = [
    strides_of_activations, strides_of_gates, strides_of_indices, strides_of_pools, poison_around_inputs, only_what_the_schema_says, repeats,
]  # fmt: skip
