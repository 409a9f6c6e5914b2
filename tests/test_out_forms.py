"""The form .out of every op that has one: the bits of the other form in given memory, and nothing beside it."""

import pytest
import torch
from calls import assert_same, poison, with_out
from fresh import copy
from harness import guarded
from rules import column_slice, embedded
from samples import SAMPLES

import gdn_ops
from gdn_ops.table import OPS, TABLE

CALLS = [(op.name, i) for op in TABLE if op.out for i in range(len(SAMPLES[op.name]))]
NAMES = [op.name for op in TABLE if op.out]
# Ops whose kernels write rows apart: the first columns of wider rows do for them, with so many dimensions in a row.
STRIDED = {
    "fused_recurrent_gated_delta_rule_update": 2, "fused_recurrent_gated_delta_rule_ring": 2, "causal_conv1d_fn": 1, "causal_conv1d_update": 1,
}  # fmt: skip


def test_ops_that_an_engine_gives_memory_have_one():
    assert {"fused_recurrent_gated_delta_rule_update", "causal_conv1d_update", "gated_rmsnorm", "gdn_decode", "gdn_prefill"} <= set(NAMES)


def listed(results) -> list:
    return list(results) if isinstance(results, tuple | list) else [results]


def results(name: str, kwargs: dict) -> tuple[list, dict]:
    """Of the form that returns them; and its arguments afterwards."""
    kwargs = copy(kwargs)
    with torch.no_grad():
        return listed(getattr(torch.ops.gdn, name).default(**kwargs)), kwargs


@pytest.mark.parametrize("name, sample", CALLS, ids=str)
def test_same_bits(name, sample, native_backend):
    kwargs = SAMPLES[name][sample](native_backend.device)
    want, after = results(name, kwargs)
    outs = dict(zip(OPS[name].out_args, (embedded(torch.full_like(r, poison(r.dtype)), 64, list(r.stride())) for r in want)))
    before = {n: buffer.clone() for n, (_, buffer) in outs.items()}
    kwargs = copy(kwargs)
    with torch.no_grad():
        assert getattr(torch.ops.gdn, name).out(**kwargs, **{n: view for n, (view, _) in outs.items()}) is None
    for n, r in zip(outs, want):
        view, buffer = outs[n]
        assert_same(view, r, n)
        before[n].as_strided(view.shape, view.stride(), view.storage_offset()).copy_(view)
        assert_same(buffer, before[n], f"round {n}")
    for n, t in kwargs.items():
        if isinstance(t, torch.Tensor):
            assert_same(t, after[n], n)


@pytest.mark.parametrize("name", NAMES)
def test_python_function_returns_what_it_was_given(name, native_backend):
    kwargs = SAMPLES[name][0](native_backend.device)
    want, _ = results(name, kwargs)
    out = tuple(guarded(torch.empty_like(r).cpu(), native_backend.device) for r in want)
    out = out if len(out) > 1 else out[0]
    with torch.no_grad():
        assert getattr(gdn_ops, name)(**kwargs, out=out) is out
    for got, r in zip(listed(out), want):
        assert_same(got, r, name)


@pytest.mark.parametrize("name", NAMES)
def test_rows_apart(name, native_backend):
    """The first columns of wider rows: written as they are, or refused."""
    kwargs = SAMPLES[name][0](native_backend.device)
    want, _ = results(name, kwargs)
    rows = want[0].dim() - STRIDED.get(name, 1)
    view, buffer = column_slice(torch.full_like(want[0], poison(want[0].dtype)), rows, 2)
    first, *others = OPS[name].out_args
    given = {first: view} | {n: torch.empty_like(r) for n, r in zip(others, want[1:])}
    with torch.no_grad():
        if name not in STRIDED:
            with pytest.raises(RuntimeError, match=rf"gdn\.{name}: {first}: expected contiguous memory on 16 bytes, got strides"):
                getattr(torch.ops.gdn, name).out(**kwargs, **given)
            return
        before = buffer.clone()
        getattr(torch.ops.gdn, name).out(**kwargs, **given)
    assert_same(view, want[0], name)
    before.as_strided(view.shape, view.stride(), view.storage_offset()).copy_(view)
    assert_same(buffer, before, f"round {first}")


def wrong(t: torch.Tensor) -> dict:
    """Memory that is none for this result, and what the refusal says."""
    dim = next(d for d, n in enumerate(t.shape) if n > 1)
    other = torch.float16 if t.dtype != torch.float16 else torch.bfloat16
    cases = {
        "another shape": (torch.empty((*t.shape, 1), dtype=t.dtype, device=t.device), "expected the shape of the result"),
        "an empty one": (t.new_empty(0), "expected the shape of the result"),
        "another dtype": (torch.empty_like(t, dtype=other), "expected (bf16|fp16|fp32|fp8_e4m3), got"),
        "rows in one place": (torch.empty_like(t).narrow(dim, 0, 1).expand(t.shape), "expected (contiguous|an element for every index)"),
    }
    if t.is_floating_point() and t.itemsize > 1:
        cases["a gradient"] = (torch.empty_like(t).requires_grad_(), "expected no gradient")
    return cases


@pytest.mark.parametrize("name", NAMES)
def test_refusals(name, native_backend):
    """Before anything was written."""
    kwargs = SAMPLES[name][0](native_backend.device)
    full = with_out(name, kwargs)
    before = copy(full)
    for n in OPS[name].out_args:
        for what, (t, text) in wrong(full[n]).items():
            with pytest.raises(RuntimeError, match=rf"gdn\.{name}: (.*; )?{n}: {text}"):
                getattr(torch.ops.gdn, name).out(**(full | {n: t}))
            for key, value in full.items():
                if isinstance(value, torch.Tensor):
                    assert_same(value, before[key], f"{what}: {key}")
