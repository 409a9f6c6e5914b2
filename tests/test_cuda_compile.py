"""Every op on CUDA under torch.compile."""

import fresh
import pytest
import torch
from samples import SAMPLES

from gdn_ops.table import OPS

pytestmark = pytest.mark.gpu
NAMES = [op for op in OPS if op in SAMPLES]


@pytest.mark.parametrize("op", NAMES)
def test_compiled_without_a_graph_break(op):
    """One graph for every shape, no copy that changes results: equal to the eager call bit by bit."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda kwargs: getattr(torch.ops.gdn, op)(**kwargs), fullgraph=True, dynamic=True)
    with torch.no_grad():
        for builder in SAMPLES[op][:2]:
            kwargs, eager = builder("cuda"), builder("cuda")
            expected = fresh.call(op, eager)
            results = compiled(kwargs)
            results = list(results) if isinstance(results, tuple | list) else [] if results is None else [results]
            assert all(map(fresh.same, results + fresh.tensors(kwargs), expected))
