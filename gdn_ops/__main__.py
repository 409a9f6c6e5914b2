"""``python -m gdn_ops info``: versions, devices, ops, and what would run."""

import argparse

import torch

from gdn_ops import _library
from gdn_ops.table import TABLE


def cuda_lines() -> list[str]:
    """The driver, every GPU and what runs on it; in words when something is missing."""
    driver = _library.lib.gdn_driver_version()
    version = f"{driver // 1000}.{driver % 1000 // 10}" if driver else "none: ops run on CPU tensors only"
    lines = [f"CUDA driver      {version}"]
    if torch.version.cuda is None:
        lines.append("torch            a build without CUDA: it makes no CUDA tensors" + (" (install a CUDA build)" if driver else ""))
    elif driver and not torch.cuda.is_available():
        lines.append(f"torch            built for CUDA {torch.version.cuda}, but it sees no GPU")
    for i in range(torch.cuda.device_count() if driver else 0):
        major, minor = torch.cuda.get_device_capability(i)
        runs = _library.lib.gdn_arch(i).decode()
        runs = f"runs the {runs} kernels" if runs.startswith("sm_") else runs
        lines.append(f"cuda:{i}           {torch.cuda.get_device_name(i)} (sm_{major}{minor}): {runs}")
    return lines


def info() -> str:
    built = _library.build_info()
    size = _library.PATH.stat().st_size / 2**20
    lines = [
        f"gdn_ops          {built['version']}, {_library.PATH} ({size:.1f} MiB)",
        f"built with       Triton {built['triton']}, NVRTC {built['nvrtc']}, headers of torch {built['torch_headers']}",
        f"built for        CPU, {', '.join(built['archs'])}; torch >= {built['torch_stable_abi']}",
        f"torch            {torch.__version__}, CUDA {torch.version.cuda or 'none'}, {torch.get_num_threads()} CPU threads",
        *cuda_lines(),
        "",
        f"{len(built['ops'])} ops, {sum(built['kernels'].values())} kernel variants for each arch",
    ]
    rows = [(f"torch.ops.gdn.{op.name}", op.dtypes, sum(built["kernels"].get(k.name, 0) for k in op.kernels), op.replaces) for op in TABLE]
    width = max(len(row[0]) for row in rows)
    lines.append(f"{'op':<{width}}  {'dtypes':<27}  {'variants':>8}  replaces")
    lines += [f"{name:<{width}}  {dtypes:<27}  {variants:>8}  {replaces}" for name, dtypes, variants, replaces in rows]
    if missing := {op.name for op in TABLE} ^ set(built["ops"]):
        lines.append(f"\nThe library and the Python package are of different builds; they differ in: {', '.join(sorted(missing))}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m gdn_ops", description="Gated DeltaNet kernels as torch.ops.gdn.*")
    parser.add_argument("command", nargs="?", choices=["info"], default="info", help="what is installed and what would run")
    parser.parse_args()
    print(info())


if __name__ == "__main__":
    main()
