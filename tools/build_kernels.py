"""Builds ``gdn_ops/lib/libgdn_ops.so``: cubins, generated C++, host code, in one ninja graph.

    python tools/build_kernels.py [--build-dir build] [--jobs N]

``GDN_CUDA_ARCHS=90`` (or ``80,90``) restricts the archs for quick work; all of ``gdn_ops.spec.ARCHS`` otherwise.
Needs no GPU and no CUDA toolkit.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import codegen, stubs  # noqa: E402, I001  (first: it makes the table importable)
from tools.cubin import nvidia_package  # noqa: E402
from gdn_ops.spec import ARCHS  # noqa: E402
from gdn_ops.table import KERNELS, TABLE  # noqa: E402

TORCH_TARGET_VERSION = "0x020a000000000000"  # the stable ABI of torch 2.10


def archs() -> list[int]:
    asked = os.environ.get("GDN_CUDA_ARCHS", "").replace("sm_", "")
    chosen = [int(a) for a in re.split(r"[,; ]+", asked) if a] or list(ARCHS)
    if unknown := set(chosen) - set(ARCHS):
        raise SystemExit(f"GDN_CUDA_ARCHS: unknown {sorted(unknown)}; known {ARCHS}")
    return sorted(chosen)


def write(path: Path, text: str) -> None:
    """Writes only what changed, so that ninja rebuilds only what depends on it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def sources() -> list[Path]:
    found = [*ROOT.glob("csrc/**/*.cpp")]
    return sorted(p for p in found if "test" not in p.parts)


def build_info(chosen: list[int]) -> dict:
    import torch

    files = [
        p
        for pattern in ("csrc/**/*.cpp", "csrc/**/*.h", "csrc/**/*.cu", "triton_src/*.py", "gdn_ops/table.py", "gdn_ops/kernels.py")
        for p in ROOT.glob(pattern)
    ]
    version = importlib.metadata.version
    return {
        "version": (ROOT / "gdn_ops" / "VERSION").read_text().strip(),
        "archs": [f"sm_{a}" for a in chosen],
        "ops": [op.name for op in TABLE],
        "kernels": {k.name: len(k.variants()) for k in KERNELS.values()},
        "triton": version("triton"),
        "nvrtc": version("nvidia-cuda-nvrtc-cu12"),
        "torch_headers": torch.__version__,
        "torch_stable_abi": "2.10",
        "sources": {p.relative_to(ROOT).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()[:16] for p in sorted(files)},
    }


def spec_text(kernel) -> str:
    """What a kernel's compilation depends on besides source files: compilers, variants, and their tuning on every arch."""
    rows = [[kernel.label(v), kernel.is_hot(v), {a: kernel.tune(v, a) for a in ARCHS}] for v in kernel.variants()]
    compilers = [importlib.metadata.version(p) for p in ("triton", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12")]
    return json.dumps([compilers, kernel.name, kernel.source, kernel.tiles, rows], indent=1)


def graph(build: Path, chosen: list[int]) -> str:
    import torch

    include = Path(torch.__file__).parent
    flags = (
        "-std=c++20 -fPIC -fvisibility=hidden -Wall -Wextra -Werror=missing-declarations "
        f"-Werror=missing-field-initializers -Werror=narrowing -DTORCH_TARGET_VERSION={TORCH_TARGET_VERSION} "
        f"-I{ROOT}/csrc -I{build} -isystem {include}/include -isystem {nvidia_package('cuda_runtime/include')}"
    )
    libs = f"-lstdc++ -lm -L{include}/lib -ltorch_cpu -lc10 -ldl"  # libtorch also exports parts of libstdc++, unversioned
    python = Path(sys.executable).name  # through PATH: another environment with the same compilers rebuilds no cubin
    lines = [
        "ninja_required_version = 1.10",
        f"rule cubin\n command = TRITON_DISABLE_LINE_INFO=1 TRITON_CACHE_DIR={build}/triton {python} {ROOT}/tools/cubin.py $kernel $arch $out\n description = $kernel sm_$arch",
        f"rule registry\n command = {python} {ROOT}/tools/build_kernels.py --build-dir {build} --registry\n restat = 1\n description = registry",
        f"rule cxx\n command = c++ $optimised {flags} -MD -MF $out.d -c $in -o $out\n depfile = $out.d\n deps = gcc\n description = $in",
        "rule as\n command = c++ -c $in -o $out\n description = $in",
        f"rule link\n command = c++ -shared -Wl,--as-needed -Wl,-Bsymbolic -Wl,--no-undefined -Wl,--version-script={build}/gen/exports.map -s -o $out $in {libs}\n description = $out",
    ]
    packs, objects = [], []
    shared = [
        *ROOT.glob("triton_src/common*.py"),
        ROOT / "triton_src/solve.py",
        ROOT / "tools/cubin.py",
        ROOT / "tools/codegen.py",
        ROOT / "gdn_ops/spec.py",
    ]
    for kernel in KERNELS.values():
        source = ROOT / kernel.source
        deps = [source, *shared, build / f"spec/{kernel.name}.json"]
        if not kernel.is_triton:
            deps += ROOT.glob("csrc/cuda/*.h")
        for arch in chosen:
            out = build / f"cubin/{kernel.name}.{arch}"
            lines.append(f"build {out}.pack {out}.json: cubin | {' '.join(map(str, deps))}\n kernel = {kernel.name}\n arch = {arch}")
            packs += [f"{out}.pack", f"{out}.json"]
    gen = build / "gen"
    lines.append(
        f"build {gen}/registry.cpp {gen}/images.S: registry | {' '.join(packs)} {build}/spec/build_info.json {ROOT}/tools/codegen.py"
    )
    lines.append(f"build {build}/obj/images.o: as {gen}/images.S | {' '.join(packs)}")
    for source in [*sources(), gen / "registry.cpp", gen / "ops.cpp"]:
        name = source.relative_to(ROOT).as_posix() if source.is_relative_to(ROOT / "csrc") else source.name
        objects.append(f"{build}/obj/{name.replace('/', '_')}.o")
        loops = source.is_relative_to(ROOT / "csrc/cpu")  # worth vectorising
        lines.append(f"build {objects[-1]}: cxx {source}\n optimised = {'-O3 -fno-trapping-math' if loops else '-O2'}")
    lines.append(f"build {ROOT}/gdn_ops/lib/libgdn_ops.so: link {' '.join(objects)} {build}/obj/images.o | {gen}/exports.map")
    return "\n".join(lines) + "\n"


def generate_registry(build: Path, chosen: list[int]) -> None:
    kernels = list(KERNELS.values())
    packs = {}
    for kernel in kernels:
        for arch in chosen:
            stem = build / f"cubin/{kernel.name}.{arch}"
            packs[kernel.name, arch] = (f"{stem}.pack", json.loads(Path(f"{stem}.json").read_text()))
    info = json.loads((build / "spec/build_info.json").read_text())
    source, asm = codegen.registry(kernels, chosen, packs, info)
    write(build / "gen/registry.cpp", source)
    write(build / "gen/images.S", asm)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--registry", action="store_true", help="only generate the registry (called by ninja)")
    args = parser.parse_args()
    build, chosen = args.build_dir.resolve(), archs()
    if args.registry:
        return generate_registry(build, chosen)

    write(build / "gen/ops.h", codegen.ops_header(TABLE))
    write(build / "gen/ops.cpp", codegen.ops_source(TABLE))
    write(build / "gen/exports.map", "{ global: gdn_*; local: *; };\n")
    write(build / "gen/kernels.h", codegen.kernels_header(list(KERNELS.values())))
    write(ROOT / "gdn_ops/ops.pyi", stubs.text(TABLE))
    for kernel in KERNELS.values():
        write(build / f"spec/{kernel.name}.json", spec_text(kernel))
    write(build / "spec/build_info.json", json.dumps(build_info(chosen), indent=1))
    write(build / "build.ninja", graph(build, chosen))
    (ROOT / "gdn_ops/lib").mkdir(exist_ok=True)
    ninja = Path(sys.executable).parent / "ninja"
    command = [str(ninja) if ninja.exists() else "ninja", "-C", str(build), "-j", str(args.jobs)]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    if code := subprocess.call(command, env={**os.environ, "PATH": path}):
        raise SystemExit(code)


if __name__ == "__main__":
    main()
