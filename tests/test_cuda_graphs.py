"""Every op inside a CUDA graph: captured as the first call of a process, replayed with other lengths, slots and values."""

import fresh
import pytest
import torch
from harness import assert_close
from samples import SAMPLES

from gdn_ops import reference
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


LENGTHS = [(64, 64, 64, 64), (1, 63, 100, 92), (256, 0, 0, 0), (0, 0, 0, 256), (0, 3, 0, 5)]


@pytest.mark.parametrize("op", ["chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule", "fused_recurrent_gated_delta_rule_update"])
def test_replay_with_other_lengths(op):
    """Captured with four sequences of 64 tokens, replayed with lengths that need more, fewer and no chunks."""
    if op not in OPS:
        pytest.skip(f"no {op} in this build")
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(1, 256, h, 64, generator=generator).bfloat16().cuda() for h in (2, 2, 4))
    g, beta = -torch.rand(1, 256, 4, generator=generator).cuda(), torch.rand(1, 256, 4, generator=generator).cuda()
    start = torch.randn(4, 4, 64, 64, generator=generator).cuda()
    cu, state = torch.empty(5, dtype=torch.int32, device="cuda"), start.clone()

    def run():
        if op.endswith("update"):
            slots = {"ssm_pool": state, "ssm_indices": torch.arange(4, device="cuda")}
            o = torch.ops.gdn.fused_recurrent_gated_delta_rule_update(
                q, k, v, g, beta, None, None, None, None, **slots, cu_seqlens=cu, use_qk_l2norm_in_kernel=True
            )
            return o, state
        return getattr(torch.ops.gdn, op)(q, k, v, g, beta, None, state, True, cu, True)

    cu.copy_(torch.tensor([0, *LENGTHS[0]]).cumsum(0))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, final = run()
    for lengths in LENGTHS:
        cu.copy_(torch.tensor([0, *lengths]).cumsum(0))
        state.copy_(start)
        o.fill_(float("nan"))
        graph.replay()
        want = reference.gated_delta_rule(q, k, v, g, beta, None, start, cu, True)
        for got, expected in zip((o, final), want):
            assert_close(got, expected, 1e-2, what=str(lengths))
