"""CUDA C++ kernels on the CPU: their own source, compiled with tests/emulated_warp.h, a block at a time."""

import ctypes
import fcntl
import functools
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent


def can_run(kernel) -> bool:
    return "tests/emulated_warp.h" in (ROOT / kernel.source).read_text()


@functools.cache
def _library(source_file: str, variants: str) -> ctypes.CDLL:
    source = f"""#include "tests/emulated_warp.h"
#define GDN_VARIANTS(X) {variants}
#include "{source_file}"
#define GDN_CASE(symbol, ...) if (!std::strcmp(name, #symbol)) return emulate(symbol, blocks, threads, shared, args);
extern "C" const char* gdn_emulate(const char* name, long blocks, int threads, int shared, const void* args) {{
  GDN_VARIANTS(GDN_CASE) return "no such variant";
}}
"""
    files = [ROOT / "tests/emulated_warp.h", ROOT / source_file, *sorted((ROOT / "csrc/cuda").glob("*.h"))]
    digest = hashlib.sha256(b"".join([source.encode(), *(f.read_bytes() for f in files)])).hexdigest()[:20]
    target = Path(tempfile.gettempdir()) / f"gdn_emulated_{os.getuid()}_{Path(source_file).stem}_{digest}.so"
    with open(target.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of processes that test at once one compiles
        if not target.exists():
            flags = ["-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-ffp-contract=off", "-U_FORTIFY_SOURCE", f"-I{ROOT}", f"-I{ROOT}/csrc"]
            part = target.with_suffix(f".{os.getpid()}")
            subprocess.run(
                ["c++", *flags, f"-I{Path(torch.__file__).parent}/include", "-xc++", "-", "-o", part], input=source.encode(), check=True
            )
            part.rename(target)
    library = ctypes.CDLL(str(target))
    library.gdn_emulate.restype = ctypes.c_char_p
    library.gdn_emulate.argtypes = (ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
    return library


def run(codegen, kernel, label: str, arch: int, programs: int, args: int) -> None:
    """Runs one variant over ``programs`` blocks; ``args`` is the address of its packed arguments."""
    variants = codegen.cuda_variants(kernel, arch)
    (variant,) = [v for v in variants if v.label == label]
    library = _library(kernel.source, " ".join(v.line for v in variants))
    if error := library.gdn_emulate(variant.symbol.encode(), programs, variant.threads, variant.shared, args):
        raise RuntimeError(f"{label}: {error.decode()}")
