"""One call under Nsight Compute."""

import csv
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def missing() -> bool:
    if shutil.which("ncu") is None:
        print("skipped: no ncu here")
        return True
    return False


def profiled(warm: Callable, run: Callable) -> None:
    """In the process that ``count`` starts: what it counts is ``run``."""
    import torch

    warm()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    run()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def count(metrics: list[str], script: str | Path, *arguments: str) -> list[tuple[dict, float]]:
    """A script's profiled call: a line and its value for every kernel and metric."""
    command = ["ncu", "--csv", "--clock-control", "none", "--profile-from-start", "off", "--metrics", ",".join(metrics)]
    done = subprocess.run([*command, sys.executable, script, *arguments], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    if done.returncode or not lines:
        raise RuntimeError((done.stdout + done.stderr)[-400:])
    return [(row, float(row["Metric Value"].replace(",", ""))) for row in csv.DictReader(lines)]
