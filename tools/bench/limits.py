"""What limits each kernel of a case, as Nsight Compute counts it.

python tools/bench/limits.py GROUP [--only WORDS] --out DIR        (needs ncu; writes DIR/limits.md)

Rows are those of run.py. A line a kernel: its time under the profiler, how busy memory and the issue slots are, the
share of a multiprocessor's warps that are there, and what these wait for most, in cycles per issued instruction.
"""

import argparse
import sys
from pathlib import Path

import ncu

STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLS = ("long_scoreboard", "short_scoreboard", "barrier", "wait", "math_pipe_throttle", "mio_throttle", "lg_throttle", "membar")
METRICS = {
    "us": "gpu__time_duration.sum",
    "DRAM bytes": "dram__bytes.sum",
    "L2 bytes": "lts__t_bytes.sum",
    "DRAM %": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "L2 %": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "instructions": "smsp__inst_executed.sum",
    "issue %": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "warps %": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
}
UNITS = {"nsecond": 1e-3, "ns": 1e-3, "usecond": 1, "us": 1, "msecond": 1e3, "ms": 1e3, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


def rows(group: str, words: str) -> list:
    import cases

    return [c for c in cases.groups()[group]() if c.has(words)]


def call(group: str, name: str) -> None:
    import cases
    import torch

    import gdn_ops  # noqa: F401

    torch.set_grad_enabled(False)
    (case,) = [c for c in rows(group, "") if c.name == name]
    ncu.profiled(*(cases.split(case.ours(case.inputs(i)))[0] for i in range(2)))


def count(group: str, name: str) -> dict[str, dict[str, float]]:
    """Metrics of every kernel of one call, by its name."""
    metrics = [*METRICS.values(), *map(STALL.format, STALLS)]
    found: dict[str, dict[str, float]] = {}
    for row, value in ncu.count(metrics, __file__, group, "--call", name):
        kernel = f"{row['ID']} {row['Kernel Name'].split('(')[0]}"
        found.setdefault(kernel, {})[row["Metric Name"]] = value * UNITS.get(row["Metric Unit"], 1)
    return found


def line(name: str, kernel: str, got: dict[str, float]) -> str:
    waits = sorted(((got.get(STALL.format(s), 0.0), s) for s in STALLS), reverse=True)[:3]
    numbers = " | ".join(f"{got.get(metric, float('nan')):.3g}" for metric in METRICS.values())
    return f"| {name} | {kernel.split(' ', 1)[1]} | {numbers} | {', '.join(f'{s} {v:.1f}' for v, s in waits)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("group")
    parser.add_argument("--only", default="")
    parser.add_argument("--call")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.call:
        call(args.group, args.call)
        return 0
    if ncu.missing():
        return 0
    lines = [f"| case | kernel | {' | '.join(METRICS)} | waits for |", "| --- " * (len(METRICS) + 3) + "|"]
    failed = 0
    for case in rows(args.group, args.only):
        try:
            lines += [line(case.name, kernel, got) for kernel, got in count(args.group, case.name).items()]
        except Exception as e:
            failed = 1
            lines.append(f"| {case.name} | {type(e).__name__}: {str(e)[-300:]} |")
        print(lines[-1], flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "limits.md").write_text("\n".join(lines) + "\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
