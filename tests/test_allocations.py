"""What an op allocates: its results and at most one workspace, on the path that a GPU takes."""

import fresh
import pytest
from backends import Backend
from samples import SAMPLES
from torch.profiler import ProfilerActivity, profile


def allocations(function) -> list[int]:
    """Bytes of every allocation of a function that are not none at all."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        function()
    return [e.cpu_memory_usage for e in seen.events() if e.name == "aten::empty_strided" and e.cpu_memory_usage > 0]


@pytest.mark.parametrize("op", SAMPLES)
def test_results_and_one_workspace(op):
    with Backend("interpreter") as backend:
        backend.count_only = True
        for i, build in enumerate(SAMPLES[op]):
            kwargs, results = build("cpu"), []
            made = allocations(lambda kwargs=kwargs, results=results: results.extend(fresh.call(op, kwargs)))
            results = [t for t in results[: len(results) - len(fresh.tensors(kwargs))] if t.numel() > 0]
            assert len(made) <= len(results) + 1, f"sample {i}: {made} bytes"
