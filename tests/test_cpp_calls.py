"""Operators called from C++ without Python in between: results, host cost, refusals that cross the boundary."""

import fcntl
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from samples import SAMPLES

import gdn_ops  # noqa: F401  (registers the operators)
from gdn_ops.table import OPS

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="session")
def cpp():
    from torch.utils.cpp_extension import is_ninja_available, load

    if not (shutil.which("c++") and is_ninja_available()):
        pytest.skip("no C++ compiler and ninja here")

    source = Path(__file__).parent / "cpp/call_ops.cpp"
    digest = hashlib.sha256(source.read_bytes() + torch.__version__.encode()).hexdigest()[:20]
    build = Path(tempfile.gettempdir()) / f"gdn_call_ops_{os.getuid()}_{digest}"
    build.mkdir(exist_ok=True)
    with open(build.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of processes that test at once one builds
        (build / "lock").unlink(missing_ok=True)  # torch's own, which outlives a process that was ended
        return load("gdn_call_ops", [str(source)], extra_cflags=["-O1", "-g0"], build_directory=str(build))


@pytest.mark.parametrize("device", DEVICES)
def test_results_are_those_of_python(cpp, device):
    for name in OPS:
        got = cpp.call(f"gdn::{name}", **SAMPLES[name][0](device))
        want = getattr(torch.ops.gdn, name)(**SAMPLES[name][0](device))
        got, want = (x if isinstance(x, (tuple, list)) else () if x is None else (x,) for x in (got, want))
        assert len(got) == len(want)
        for a, b in zip(got, want):
            assert torch.equal(a, b), name


@pytest.mark.parametrize("device", DEVICES)
def test_host_cost(cpp, device, record_property):
    """A call from C++ costs microseconds: no compiler, no file, no Python. The bound leaves room for a busy machine;
    the benchmarks measure the ratio to torch.mul."""
    x = torch.ones(1, 64, device=device)
    seconds = min(cpp.seconds_per_call(1000, "gdn::l2norm", x) for _ in range(5))
    record_property("l2norm_us", seconds * 1e6)
    assert seconds < 40e-6, f"{seconds * 1e6:.1f} us"


@pytest.mark.parametrize("device", DEVICES)
def test_refusals_are_exceptions_in_cpp(cpp, device):
    """Thrown by the library, caught by a C++ caller as std::exception with the whole text, again and again."""
    bad = torch.ones(2, 4096, device=device, dtype=torch.float64)
    text = cpp.refusal(1000, "gdn::l2norm", bad)
    assert "gdn.l2norm: x: expected bf16 or fp16 or fp32, got another dtype" in text and "a last dimension of 1 to 2048" in text
    assert cpp.refusal(1, "gdn::l2norm", torch.ones(2, 64, device=device)) == ""
