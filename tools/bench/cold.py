"""First calls: each op in a forked child of a process that imported everything and touched no device.

Prints one JSON list: import time of the package on top of torch, then per op the first and second call of its first
sample in milliseconds. Goals: import <= 150 ms, first call <= 50 ms.
"""

import json
import os
import sys
import time
from pathlib import Path

start = time.perf_counter()
import torch  # noqa: E402

middle = time.perf_counter()
import gdn_ops  # noqa: E402, F401

IMPORT = dict(
    name="import gdn_ops on top of torch", first=(time.perf_counter() - middle) * 1e3, note=f"torch itself {(middle - start) * 1e3:.0f} ms"
)
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))


def in_fork(fn) -> dict:
    """fn() -> dict in a forked child."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            result = fn()
        except BaseException as e:  # the child's only way to speak
            result = dict(failed=f"{type(e).__name__}: {str(e)[:300]}")
        os.write(write, json.dumps(result).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as f:
        text = f.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else dict(failed="the process died")


def first_call(op: str, builder) -> dict:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sync = torch.cuda.synchronize if device == "cuda" else lambda: None
    torch.set_grad_enabled(False)
    if device == "cuda":
        torch.ones(8, device=device).mul_(2)  # torch's own first use of the device
    times = []
    for _ in range(2):
        kwargs = builder(device)
        sync()
        begin = time.perf_counter()
        getattr(torch.ops.gdn, op)(**kwargs)
        sync()
        times.append((time.perf_counter() - begin) * 1e3)
    note = "over 50 ms" if times[0] > 50 else ""
    return dict(first=times[0], second=times[1], note=note if device == "cuda" else "CPU")


def main() -> None:
    try:
        from samples import SAMPLES
    except ImportError as e:
        print(json.dumps([IMPORT, dict(name="first calls", note=f"skipped: {e}")]))
        return
    rows = [IMPORT]
    for op, builders in SAMPLES.items():
        if hasattr(torch.ops.gdn, op):
            rows.append(dict(name=op) | in_fork(lambda op=op, builders=builders: first_call(op, builders[0])))
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
