"""Registers, spills, shared memory and size of every compiled kernel.

    python tools/list_kernels.py [NAME ...] [--arch 90] [--spills] [--build-dir build]

NAME picks kernels by a part of their variants' names (``chunk_fwd_h``, ``l2norm-T.bf16``). Bytes are those of the
variant's cubin; variants that share one (CUDA C++ kernels) each show the whole.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def load(build: Path) -> list[tuple[str, int, dict]]:
    """``(variant, arch, metadata)`` of everything built, by kernel and arch."""
    files = sorted(build.glob("cubin/*.json"), key=lambda p: (p.stem.split(".")[0], int(p.stem.split(".")[1])))
    return [(label, int(p.stem.split(".")[1]), meta) for p in files for label, meta in json.loads(p.read_text()).items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--arch", type=int)
    parser.add_argument("--spills", action="store_true", help="only variants with stack memory")
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build")
    args = parser.parse_args()
    found = load(args.build_dir)
    if not found:
        raise SystemExit(f"nothing built in {args.build_dir}: run tools/build_kernels.py")
    rows = [
        (label, arch, meta)
        for label, arch, meta in found
        if (not args.names or any(n in label for n in args.names))
        and args.arch in (None, arch)
        and (meta["stack"] or not args.spills)
    ]  # fmt: skip
    width = max((len(label) for label, _, _ in rows), default=10)
    print(f"{'variant':<{width}}  {'arch':>6}  {'threads':>7}  {'regs':>4}  {'stack':>5}  {'shared':>7}  {'bytes':>7}")
    for label, arch, m in rows:
        shared = m["shared"] + m["static_shared"]
        print(f"{label:<{width}}  sm_{arch:<3}  {m['threads']:>7}  {m['registers']:>4}  {m['stack']:>5}  {shared:>7}  {m['bytes']:>7}")
    packs = sum(p.stat().st_size for p in args.build_dir.glob("cubin/*.pack"))
    print(f"{len(rows)} of {len(found)} cubin entries; all packs together {packs / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
