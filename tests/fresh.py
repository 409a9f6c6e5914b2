"""What has to happen in a process of its own, before a device was used: run as ``python fresh.py NAME ARGUMENTS``.

``run(name, *arguments)`` starts one and returns its results. A function forks once per variant, after the imports and
before the first use of a device, so each variant is a first call and the imports are paid once.
"""

import json
import os
import subprocess
import sys
import threading
import time

import torch

import gdn_ops  # noqa: F401


def run(name: str, *arguments, env: dict | None = None) -> dict:
    """{variant: "ok" or what went wrong}"""
    command = [sys.executable, __file__, name, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | (env or {}), timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def forked(fn, *arguments):
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            torch.set_grad_enabled(False)
            result = fn(*arguments)
        except BaseException as e:  # the child's only way to speak
            import traceback

            result = f"{type(e).__name__}: {e}\n{traceback.format_exc()[-1500:]}"
        os.write(write, json.dumps(result).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as f:
        text = f.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else "the process died"


# ---- calls -----------------------------------------------------------------------------------------------------


def call(op: str, kwargs: dict) -> list[torch.Tensor]:
    """The results of an op, then its tensor arguments (which it may have changed)."""
    results = getattr(torch.ops.gdn, op)(**kwargs)
    results = list(results) if isinstance(results, tuple | list) else [] if results is None else [results]
    return results + tensors(kwargs)


def tensors(kwargs: dict) -> list[torch.Tensor]:
    return [t for t in kwargs.values() if isinstance(t, torch.Tensor)]


def copy(kwargs: dict) -> dict:
    """The same arguments in memory of their own, with the same strides (views of a wider buffer included)."""

    def one(t):
        new = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
        return new.copy_(t)

    return {n: one(t) if isinstance(t, torch.Tensor) else t for n, t in kwargs.items()}


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bits."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.contiguous().view(bits), b.contiguous().view(bits))


def vary(kwargs: dict) -> None:
    """Other contents in the same memory: other lengths, other slots, other values."""
    for name, t in kwargs.items():
        if not isinstance(t, torch.Tensor):
            continue
        if name in ("cu_seqlens", "query_start_loc"):
            lens = t.diff().flip(0)
            t[1:] = lens.cumsum(0).to(t.dtype)
        elif t.is_floating_point():
            t.copy_((t.float() * 0.5).to(t.dtype))
        else:
            t.copy_(t.roll(1, 0))


# ---- variants --------------------------------------------------------------------------------------------------


def captured(op: str, sample: int, mode: str) -> str:
    from samples import SAMPLES

    kwargs = SAMPLES[op][sample]("cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        results = call(op, kwargs)
    for replay in range(3):
        expected = call(op, copy(kwargs)) if replay else None
        before = copy(kwargs) if not replay else None
        graph.replay()
        torch.cuda.synchronize()
        expected = expected or call(op, before)
        wrong = [i for i, (a, b) in enumerate(zip(results, expected)) if not same(a, b)]
        if wrong:
            return f"replay {replay}: results {wrong} differ from the eager call"
        vary(kwargs)
    return "ok"


def capture(op: str) -> dict:
    from samples import SAMPLES

    first = {f"0 {mode}": forked(captured, op, 0, mode) for mode in ("global", "thread_local", "relaxed")}
    return first | {f"{i} global": forked(captured, op, i, "global") for i in range(1, len(SAMPLES[op]))}


def from_threads(ops: list[str], count: int = 16) -> str:
    """Every op's first call on this device, from many threads at once, each on a stream of its own."""
    from samples import SAMPLES

    problems = []
    for op in ops:
        samples = [SAMPLES[op][0]("cuda") for _ in range(count)]
        results, barrier = [None] * count, threading.Barrier(count)
        torch.cuda.synchronize()

        def work(i, op=op, samples=samples, results=results, barrier=barrier):
            with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
                barrier.wait()
                try:
                    results[i] = call(op, samples[i])
                except Exception as e:
                    problems.append(f"{op}, thread {i}: {e}")

        threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        torch.cuda.synchronize()
        for i, r in enumerate(results):
            if r is None:
                problems.append(f"{op}: thread {i} has no result")
            elif not all(map(same, r, results[0] or r)):
                problems.append(f"{op}: thread {i} got other bits than thread 0")
    return "; ".join(problems) or "ok"


def threads(ops: list[str]) -> dict:
    third = max(1, len(ops) // 3)
    return {f"from {ops[i]} on": forked(from_threads, ops[i:] + ops[:i]) for i in range(0, len(ops), third)}


def timed(op: str) -> float:
    from samples import SAMPLES

    torch.ones(8, device="cuda").mul_(2)  # torch's own first use of the device
    kwargs = SAMPLES[op][0]("cuda")
    torch.cuda.synchronize()
    start = time.perf_counter()
    call(op, kwargs)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def first_calls(ops: list[str], limit: float) -> dict:
    """Milliseconds of each op's first call; one over the limit gets two more tries, as other work only adds."""
    times = {}
    for op in ops:
        tries = [forked(timed, op)]
        while len(tries) < 3 and isinstance(tries[-1], float) and tries[-1] > limit:
            tries.append(forked(timed, op))
        times[op] = min(tries) if all(isinstance(t, float) for t in tries) else str(tries)
    return times


def refused(ops: list[str], capability: int) -> str:
    """On a GPU the wheel was not built for every op refuses in words; told the truth, the same process works."""
    from samples import SAMPLES

    from gdn_ops._library import lib

    lib.gdn_pretend_capability(capability)
    built = ", ".join(gdn_ops.build_info()["archs"])
    for op in ops:
        try:
            call(op, SAMPLES[op][0]("cuda"))
            return f"{op} ran"
        except RuntimeError as e:
            if "gdn." not in str(e) or f"this GPU is sm_{capability}; built: {built}" not in str(e):
                return f"{op} said: {e}"
    lib.gdn_pretend_capability(0)
    for op in ops:
        call(op, SAMPLES[op][0]("cuda"))
    torch.cuda.synchronize()
    return "ok"


def other_gpu(ops: list[str]) -> dict:
    return {"sm_75": forked(refused, ops, 75), "sm_130": forked(refused, ops, 130)}


def without_triton(op: str) -> str:
    """No import of Triton, no process started, and 200 MB are enough."""
    from samples import SAMPLES

    started, loaded = [], set(sys.modules)
    sys.addaudithook(lambda event, args: started.append(f"{event} {args[:1]}") if event in ("subprocess.Popen", "os.posix_spawn") else None)
    torch.cuda.set_per_process_memory_fraction(200e6 / torch.cuda.get_device_properties(0).total_memory)
    for sample in SAMPLES[op]:
        call(op, sample("cuda"))
    torch.cuda.synchronize()
    if new := [m for m in set(sys.modules) - loaded if "triton" in m]:
        return f"imported {new}"
    return "; ".join(started) or "ok"


def no_compiler(ops: list[str]) -> dict:
    return {op: forked(without_triton, op) for op in ops}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*json.loads(sys.argv[2]))))
