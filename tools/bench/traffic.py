"""Bytes read from and written to GPU memory by a call, counted by Nsight Compute: does ``initial_state=None`` cost any?

python tools/bench/traffic.py --out DIR        (needs ncu; writes DIR/traffic.md)
"""

import argparse
import sys
from pathlib import Path

import ncu

N, T, H, HV, K = 64, 64, 16, 32, 128
METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
STATES = N * HV * K * K * 4
OPS = ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule")
UNITS = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


def call(op: str, state: str) -> None:
    import torch

    import gdn_ops  # noqa: F401

    torch.set_grad_enabled(False)
    q, k, v = (torch.randn(N, T, h, K, device="cuda").bfloat16() for h in (H, H, HV))
    g, beta = torch.full((N, T, HV), -0.1, device="cuda"), torch.full((N, T, HV), 0.5, device="cuda")
    h0 = torch.zeros(N, HV, K, K, device="cuda") if state == "given" else None
    run = lambda: getattr(torch.ops.gdn, op)(q, k, v, g, beta, initial_state=h0, output_final_state=False)  # noqa: E731
    ncu.profiled(run, run)


def count(op: str, state: str) -> list[float]:
    """Bytes read and written by every kernel of one call."""
    totals = dict.fromkeys(METRICS, 0.0)
    for row, value in ncu.count(METRICS, __file__, "--call", op, state):
        totals[row["Metric Name"]] += value * UNITS[row["Metric Unit"]]
    return list(totals.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--call", nargs=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.call:
        call(*args.call)
        return 0
    if ncu.missing():
        return 0
    lines = [f"{N} sequences of {T} tokens, {H}/{HV} heads: states {STATES / 1e6:.0f} MB", ""]
    lines += ["| op | initial_state | MB read | MB written |", "| --- | --- | --- | --- |"]
    failed = 0
    for op in OPS:
        reads = {}
        for state in ("None", "given"):
            try:
                read, written = count(op, state)
                reads[state] = read
                lines.append(f"| {op} | {state} | {read / 1e6:.0f} | {written / 1e6:.0f} |")
            except Exception as e:
                failed = 1
                lines.append(f"| {op} | {state} | {type(e).__name__}: {str(e)[:200]} | |")
        if len(reads) == 2 and not 0.9 * STATES < reads["given"] - reads["None"] < 1.1 * STATES:
            failed = 1
            lines.append(f"| {op} | | WRONG: expected a difference of {STATES / 1e6:.0f} MB | |")
    print("\n".join(lines))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "traffic.md").write_text("\n".join(lines) + "\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
