"""Benchmarks against the bytes-or-flops floor and against every peer that can be imported.

    python tools/bench/run.py [group ...] [--only WORDS] [--peers fla] --out DIR

Groups: prefill, decode, ring, layer, verify, layer_prefill, packed, update, pool, steps, conv, norm, host, cold (all by default). WORDS
keep the rows that have each of them in their group, name or op. Every case is checked first, against
float64 where that is feasible, and gets no time if it fails. Writes DIR/bench.json and DIR/bench.md, prints one table
a group last. Without a GPU it checks small versions of every case and prints no times.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

os.environ.setdefault("PYTHONUNBUFFERED", "1")
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import cases  # noqa: E402
import report  # noqa: E402
import timers  # noqa: E402
import torch  # noqa: E402
from cases import listed, split  # noqa: E402
from inputs import GPU  # noqa: E402
from peers import PEERS  # noqa: E402

import gdn_ops  # noqa: E402

torch.set_grad_enabled(False)


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """RMS of the difference over RMS of the wanted, in float64; infinite where either is not finite."""
    got = got.double().reshape(-1) if got.shape == want.shape else got.double()[:, : want.shape[1]].reshape(-1)
    want = want.to(got.device).double().reshape(-1)
    e = ((got - want).norm() / want.norm().clamp_min(1e-30)).item() if want.numel() else 0.0
    return e if e == e else float("inf")


def compare(results: tuple, wanted: tuple) -> list:
    return [error(g, w) if w is not None else None for g, w in zip(results, wanted)]


def measure(case, name: str, make, xs: list) -> dict:
    calls = [split(make(x))[0] for x in xs]
    t = timers.graph(calls) if case.layers > 1 else timers.cold(calls[0])
    row = dict(median=t.median / case.per, low=t.low / case.per, high=t.high / case.per) if t else {}
    return row | dict(host=timers.host(calls[0], 50 if case.layers > 1 else 20))


def run(case, wanted_peers: list[str], host_only: bool) -> dict:
    row = dict(group=case.group, name=case.name, op=case.op, goal=case.goal, peers={}, notes=[])
    if not hasattr(torch.ops.gdn, case.op):
        return row | dict(skipped=f"no op {case.op} in this build")
    x = case.inputs(0)
    wanted = case.truth(x)
    call, see = split(case.ours(x))
    results = listed(see(call()))
    timers.sync()
    row["errors"] = compare(results, wanted)
    bad = [f"{e:.1e} > {m:.1e}" for e, m in zip(row["errors"], case.marks) if e is not None and e > m]
    whole = all(w is not None and w.shape == r.shape for w, r in zip(wanted, results))
    makers = {n: m for n, m in PEERS.get(case.op, {}).items() if n in wanted_peers and case.peers}
    if not whole and not host_only:
        bad += cross_check(case, x, results, makers, row)
    if bad:
        return row | dict(failed="wrong: " + ", ".join(bad))
    row["floor"] = timers.floor_us(case.nbytes(x), case.flops)
    if host_only:
        return row | dict(ours=dict(host=timers.host(call)))
    xs = [x, *(case.inputs(i) for i in range(1, case.layers))]
    row["ours"] = measure(case, "gdn", case.ours, xs)
    for name, make in makers.items():
        try:
            peer = listed(make(x)())
            row["peers"][name] = measure(case, name, make, xs) | dict(errors=compare(peer, case.truth(x)))
        except ImportError as e:
            row["notes"].append(f"{name}: {e}")
        except Exception as e:
            row["notes"].append(f"{name} failed: {type(e).__name__} {str(e)[:160]}")
            timers.sync()
    return row


def cross_check(case, x, results, makers, row) -> list[str]:
    """The whole of a long case against our token loop, else against the first peer."""
    others = {"token loop": case.oracle} if case.oracle and hasattr(torch.ops.gdn, "fused_recurrent_gated_delta_rule") else makers
    for name, make in others.items():
        try:
            row["checked_with"], errors = name, compare(results, listed(split(make(x))[0]()))
            return [f"{e:.1e} > {2 * m:.1e} from {name}" for e, m in zip(errors, case.marks) if e is not None and e > 2 * m]
        except ImportError:
            continue
    row["checked_with"] = "prefix only"
    return []


def warm_peers(groups: list[str], peers: list[str]) -> None:
    """Compiles the peers' kernels for every head configuration in parallel, into Triton's cache; tuning stays here."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import inputs, peers, torch; h, v, many, op = *map(int, sys.argv[2:5]), sys.argv[5]; peers.PEERS[op]['fla'](inputs.prefill([128] * many, h, v))()"
    if (
        not GPU
        or "fla" not in peers
        or "prefill" not in groups
        or subprocess.run([sys.executable, "-c", "import fla"], capture_output=True).returncode
    ):
        return
    start = time.time()
    shapes = [(16, 32, 1), (16, 32, 2), (4, 8, 1), (16, 64, 1), (16, 48, 1), (2, 8, 1)]
    env = os.environ | {"FLA_CACHE_RESULTS": "0"}
    started = [subprocess.Popen([sys.executable, "-c", code, str(HERE), *map(str, s), "chunk_gated_delta_rule"], env=env) for s in shapes]
    for process in started:
        process.wait()
    print(f"peers' kernels compiled in {time.time() - start:.0f} s", flush=True)


def cold(out: Path) -> list[dict]:
    done = subprocess.run([sys.executable, HERE / "cold.py"], capture_output=True, text=True)
    if done.returncode:
        return [dict(group="cold", name="cold.py", failed=done.stderr[-400:])]
    return [dict(group="cold", **row) for row in json.loads(done.stdout.splitlines()[-1])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("groups", nargs="*", default=[])
    parser.add_argument("--only", default="", metavar="WORDS", help="only rows with each of these words in group, name or op")
    parser.add_argument("--peers", default="fla")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    known = cases.groups()
    groups = [g for word in args.groups for g in word.split(",") if g] or [*known, "host", "cold"]
    if unknown := set(groups) - {*known, "host", "cold"}:
        parser.error(f"unknown groups {sorted(unknown)}; known: {', '.join([*known, 'host', 'cold'])}")
    args.out.mkdir(parents=True, exist_ok=True)
    head = report.machine(gdn_ops)
    print(json.dumps(head), flush=True)
    peers = [p for p in args.peers.split(",") if p]
    rows = cold(args.out) if "cold" in groups else []
    warm_peers(groups, peers)
    head["mul_host"] = timers.host(report.elementwise())
    todo = [(c, False) for g in groups if g in known for c in known[g]()]
    if "host" in groups:
        first = {}
        for case in (c for g in known.values() for c in g()):
            first.setdefault(case.op, case)
        todo += [(c, True) for c in first.values()]
    for case, host_only in todo:
        if not case.has(args.only):
            continue
        start = time.time()
        try:
            row = run(case, peers, host_only)
        except cases.Absent as e:
            row = dict(group=case.group, name=case.name, op=case.op, skipped=str(e))
        except Exception as e:
            row = dict(group=case.group, name=case.name, op=case.op, failed=f"{type(e).__name__}: {str(e)[:300]}")
            if os.environ.get("TB"):
                traceback.print_exc()
        row |= dict(seconds=round(time.time() - start, 1)) | (dict(group="host", name=f"{case.op}, {case.name}") if host_only else {})
        rows.append(row)
        print(report.line(row), flush=True)
        gc.collect()
        if GPU:
            try:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
            except Exception as e:
                print(f"the device is lost, stopping: {e}", flush=True)
                break
    (args.out / "bench.json").write_text(json.dumps(dict(head=head, rows=rows), indent=1))
    (args.out / "bench.md").write_text(report.markdown(head, rows))
    print(report.tables(head, rows))
    return int(any("failed" in r for r in rows))


if __name__ == "__main__":
    sys.exit(main())
