"""Every op inside a CUDA graph: captured as the first call of a process, replayed with other lengths, slots and values."""

import fresh
import pytest
import torch
from samples import SAMPLES

from gdn_ops.table import OPS

pytestmark = pytest.mark.gpu
NAMES = [op for op in OPS if op in SAMPLES]


@pytest.mark.parametrize("op", NAMES)
def test_captured_as_the_first_call(op):
    """In all three capture modes; replays equal eager calls bit by bit."""
    results = fresh.run("capture", op)
    assert results == dict.fromkeys(results, "ok")


def test_captured_with_eager_module_loading():
    results = fresh.run("capture", NAMES[0], env={"CUDA_MODULE_LOADING": "EAGER"})
    assert results == dict.fromkeys(results, "ok")


@pytest.mark.parametrize("op", NAMES)
def test_side_stream(op):
    """Work is queued on the current stream: inputs written there, late, are what the op sees."""
    kwargs = SAMPLES[op][0]("cuda")
    expected = fresh.call(op, fresh.copy(kwargs))
    late = {n: torch.zeros_like(t) if isinstance(t, torch.Tensor) and t.is_floating_point() else t for n, t in kwargs.items()}
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        for name, t in late.items():
            if isinstance(t, torch.Tensor):
                t.copy_(kwargs[name])
        got = fresh.call(op, late)
    stream.synchronize()
    assert all(map(fresh.same, got, expected))


def test_one_graph_of_many_ops():
    """All ops in one graph share no state: replayed together they give what each gives alone."""
    kwargs = {op: SAMPLES[op][0]("cuda") for op in NAMES}
    expected = {op: fresh.call(op, fresh.copy(kwargs[op])) for op in NAMES}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = {op: fresh.call(op, kwargs[op]) for op in NAMES}
    graph.replay()
    torch.cuda.synchronize()
    assert [op for op in NAMES if not all(map(fresh.same, got[op], expected[op]))] == []
