"""What a call may do to the process and the device around it: nothing but its results."""

import gc
import time

import fresh
import pytest
import torch
from harness import assert_close
from samples import SAMPLES

import gdn_ops
from gdn_ops._library import lib
from gdn_ops.table import OPS

NAMES = [op for op in OPS if op in SAMPLES]
CALLS = [pytest.param(op, builder, id=f"{op}-{i}") for op in NAMES for i, builder in enumerate(SAMPLES[op])]
INDEX = ("cu_seqlens", "query_start_loc", "num_accepted_tokens", "has_initial_state", "cache_seqlens", "prefix_lens", "parents")
gpu = pytest.mark.gpu


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def is_index(name: str) -> bool:
    return name in INDEX or name.endswith("indices")


# ---- processes and devices -------------------------------------------------------------------------------------


@gpu
def test_first_calls_from_many_threads():
    results = fresh.run("threads", NAMES)
    assert results == dict.fromkeys(results, "ok")


@gpu
@pytest.mark.xdist_group("large")
def test_first_calls_take_50_ms():
    times = fresh.run("first_calls", NAMES, 50)
    assert {op: t for op, t in times.items() if not isinstance(t, float) or t > 50} == {}


@gpu
def test_gpu_not_in_the_wheel():
    results = fresh.run("other_gpu", NAMES)
    assert results == dict.fromkeys(results, "ok")


@gpu
def test_no_compiler_and_no_triton():
    results = fresh.run("no_compiler", NAMES, env={"TRITON_CACHE_DIR": "/nowhere"})
    assert results == dict.fromkeys(results, "ok")


@gpu
@pytest.mark.xdist_group("large")
@pytest.mark.parametrize("op", ["chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule", "l2norm"])
def test_new_shapes_cost_nothing(op):
    """Nothing is compiled, tuned or cached by shape: the first call of a shape takes the host what the second takes."""
    if op not in OPS:
        pytest.skip(f"no {op} in this build")
    x = [torch.randn(1, 4096, h, 128, device="cuda").bfloat16() for h in (2, 2, 4)]
    gates = [-torch.rand(1, 4096, 4, device="cuda"), torch.rand(1, 4096, 4, device="cuda")]

    def us(T):
        args = [t[:, :T] for t in (x[:1] if op == "l2norm" else x + gates)]
        start = time.perf_counter()
        getattr(torch.ops.gdn, op)(*args)
        end = time.perf_counter()
        torch.cuda.synchronize()
        return (end - start) * 1e6

    us(4096)
    first, second = zip(*((us(T), us(T)) for T in range(1000, 1400, 19)))
    assert sorted(first)[len(first) // 2] <= 2 * sorted(second)[len(second) // 2]


@pytest.mark.parametrize("capability", [75, 80, 86, 87, 89, 90, 100, 101, 103, 110, 120, 121, 130])
def test_arch_for_a_gpu(capability):
    """A cubin serves its own compute capability and, below 9.0, later ones of the same major version; else a refusal."""
    built = [int(a.removeprefix("sm_")) for a in gdn_ops.build_info()["archs"]]
    fits = [a for a in built if a == capability or (a < 90 and a // 10 == capability // 10 and a < capability)]
    want = f"sm_{max(fits)}" if fits else f"this GPU is sm_{capability}; built: {', '.join(f'sm_{a}' for a in built)}"
    lib.gdn_pretend_capability(capability)
    try:
        assert lib.gdn_arch(1000).decode().removeprefix("gdn.arch: ") == want
    finally:
        lib.gdn_pretend_capability(0)


@gpu
@pytest.mark.parametrize("op", NAMES)
def test_mixed_devices_are_refused(op):
    kwargs = SAMPLES[op][0]("cuda")
    names = [n for n, t in kwargs.items() if isinstance(t, torch.Tensor)]
    for name in names[1:]:
        with pytest.raises(RuntimeError, match=rf"gdn\.{op}: .*expected (cuda:0|cpu) like the tensors before it"):
            fresh.call(op, kwargs | {name: kwargs[name].cpu()})


@gpu
@pytest.mark.parametrize("op", NAMES)
def test_current_device_stays(op):
    kwargs, before = SAMPLES[op][0]("cuda"), torch.cuda.current_device()
    fresh.call(op, kwargs)
    assert torch.cuda.current_device() == before
    with pytest.raises(RuntimeError):
        fresh.call(op, {n: t[None, None, None] if isinstance(t, torch.Tensor) else t for n, t in kwargs.items()})
    assert torch.cuda.current_device() == before


@gpu
@pytest.mark.parametrize("op", NAMES)
def test_second_gpu(op):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs 2 GPUs")
    expected = fresh.call(op, SAMPLES[op][0]("cuda:0"))
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        got = fresh.call(op, SAMPLES[op][0](device))
        assert all(g.device == torch.device(device) for g in got) and torch.cuda.current_device() == 0
        assert all(fresh.same(g.cpu(), e.cpu()) for g, e in zip(got, expected))
    kwargs = SAMPLES[op][0]("cuda:1")
    with torch.cuda.device(1):
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = fresh.call(op, kwargs)
        graph.replay()
        torch.cuda.synchronize()
    assert all(fresh.same(g.cpu(), e.cpu()) for g, e in zip(got, expected))
    name = [n for n, t in kwargs.items() if isinstance(t, torch.Tensor)][-1]
    if len(fresh.tensors(kwargs)) > 1:
        with pytest.raises(RuntimeError, match="expected cuda:[01] like the tensors before it"):
            fresh.call(op, kwargs | {name: kwargs[name].to("cuda:0")})


# ---- host and memory -------------------------------------------------------------------------------------------


@gpu
@pytest.mark.parametrize("op, builder", CALLS)
def test_no_synchronisation(op, builder):
    """Neither through torch nor through the driver: the call returns while the device is still busy."""
    kwargs = builder("cuda")
    fresh.call(op, kwargs)
    torch.cuda.synchronize()
    busy = torch.cuda.Event()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(400_000_000)  # about 0.2 s
        fresh.call(op, kwargs)
        busy.record()
        assert not busy.query(), "the device was idle when the call returned"
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()


@gpu
@pytest.mark.parametrize("op, builder", CALLS)
def test_allocates_results_and_one_workspace(op, builder):
    kwargs = builder("cuda")
    fresh.call(op, kwargs)
    torch.cuda.synchronize()
    gc.collect()  # tensors of earlier tests that only a cycle holds
    before = torch.cuda.memory_stats()
    results = fresh.call(op, kwargs)[: -len(fresh.tensors(kwargs))]
    after = torch.cuda.memory_stats()
    assert after["allocation.all.allocated"] - before["allocation.all.allocated"] <= sum(r.numel() > 0 for r in results) + 1
    kept = sum(r.untyped_storage().nbytes() for r in results)
    assert after["requested_bytes.all.current"] - before["requested_bytes.all.current"] == kept


@gpu
@pytest.mark.parametrize("op, builder", CALLS)
def test_repeats_are_bit_equal(op, builder):
    first = fresh.call(op, builder("cuda"))
    for _ in range(3):
        assert all(map(fresh.same, fresh.call(op, builder("cuda")), first))


@gpu
@pytest.mark.parametrize("op, builder", CALLS)
def test_a_refused_call_changes_nothing(op, builder):
    kwargs, untouched = builder("cuda"), builder("cuda")
    names = [n for n, t in kwargs.items() if isinstance(t, torch.Tensor)]
    for name in names:
        with pytest.raises(RuntimeError, match=rf"gdn\.{op}: "):
            fresh.call(op, kwargs | {name: kwargs[name][None, None, None, None]})
    torch.cuda.synchronize()
    assert all(map(fresh.same, fresh.tensors(kwargs), fresh.tensors(untouched)))
    assert all(map(fresh.same, fresh.call(op, kwargs), fresh.call(op, untouched)))


# ---- addresses -------------------------------------------------------------------------------------------------


def moved(t: torch.Tensor, elements: int) -> torch.Tensor:
    """The same values and strides, starting some elements into a buffer of NaN."""
    span = sum((n - 1) * s for n, s in zip(t.shape, t.stride())) + 1 if t.numel() else 0
    fill = float("nan") if t.is_floating_point() else 1
    buffer = torch.full((span + elements + 64,), fill, dtype=t.dtype, device=t.device)
    return buffer.as_strided(t.shape, t.stride(), elements).copy_(t)


@gpu
@pytest.mark.parametrize("op, builder", CALLS)
def test_metadata_may_start_anywhere(op, builder):
    expected = fresh.call(op, builder("cuda"))
    names = [n for n, t in builder("cuda").items() if isinstance(t, torch.Tensor) and is_index(n)]
    for elements in (1, 2, 3, 4) if names else ():
        kwargs = builder("cuda")
        got = fresh.call(op, kwargs | {n: moved(kwargs[n], elements) for n in names})
        assert all(map(fresh.same, got, expected)), f"offset {elements}"


@gpu
@pytest.mark.parametrize("op, builder", CALLS)
def test_data_may_start_anywhere(op, builder):
    """Other alignments may take other kernels: equal within the rounding of their matrix products."""
    kwargs = builder("cuda")
    expected = fresh.call(op, kwargs)
    for elements in (1, 4, 8):
        kwargs = {n: moved(t, elements) if isinstance(t, torch.Tensor) and not is_index(n) else t for n, t in builder("cuda").items()}
        for i, (g, e) in enumerate(zip(fresh.call(op, kwargs), expected)):
            if g.is_floating_point():
                assert_close(g, e, 1e-2, what=f"offset {elements}, result {i}")


@gpu
def test_a_missing_initial_state_costs_no_traffic():
    """512 MiB of states that need not be read: the call without them is faster by most of the time to read them."""
    op = "chunk_gated_delta_rule"
    if op not in OPS:
        pytest.skip(f"no {op}")
    N, T, H, HV, K = 256, 16, 16, 32, 128
    q, k, v = (torch.randn(N, T, h, K, device="cuda").bfloat16() for h in (H, H, HV))
    g, beta = torch.full((N, T, HV), -0.1, device="cuda"), torch.full((N, T, HV), 0.5, device="cuda")
    h0 = torch.zeros(N, HV, K, K, device="cuda")

    def ms(state):
        times = []
        for _ in range(9):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(4_000_000)
            start.record()
            torch.ops.gdn.chunk_gated_delta_rule(q, k, v, g, beta, None, state, False)
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end))
        return min(times[2:])

    start = time.perf_counter()
    read = h0.numel() * 4 / 4.25e9
    without, given = ms(None), ms(h0)
    assert given - without > 0.5 * read, (
        f"{without:.3f} ms without, {given:.3f} ms with {read:.3f} ms of states, {time.perf_counter() - start:.1f} s"
    )
