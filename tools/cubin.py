"""Compiles all variants of one kernel for one arch into a pack: the cubins one after another, and their metadata.

    python tools/cubin.py <kernel> <arch> <out.pack> <out.json>

Triton kernels go through ``triton.compile``, the call inside ``triton.tools.compile``, which also gives options and
metadata that tool lacks; CUDA C++ goes through NVRTC. Neither needs a GPU. Everything that knows the internals of
either compiler is here. Checked for every cubin: parameter layout, scratch sizes, shared memory, spills.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.codegen import CPP_SCALAR, cuda_variants, split_hint, triton_params  # noqa: E402, I001
from gdn_ops.spec import SHARED_LIMIT, Kernel  # noqa: E402

SIZE = {"int32_t": 4, "int64_t": 8, "float": 4}


def nvidia_package(part: str) -> Path:
    """A folder of NVIDIA's PyPI packages, such as ``cuda_nvrtc/lib``."""
    for root in importlib.util.find_spec("nvidia").submodule_search_locations:
        if (Path(root) / part).is_dir():
            return Path(root) / part
    raise SystemExit(f"no nvidia/{part}: install nvidia-cuda-nvrtc-cu12 and nvidia-cuda-runtime-cu12")


# ---- Triton ----------------------------------------------------------------------------------------------------


def compile_triton(kernel: Kernel, variant: dict, arch: int) -> tuple[bytes, dict]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ROOT / kernel.source
    sys.path.insert(0, str(source.parent))
    spec = importlib.util.spec_from_file_location(source.stem, source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    fn = getattr(module, f"{kernel.name}_kernel")

    tune = kernel.tune(variant, arch)
    constants = {**variant, **{k: v for k, v in tune.items() if k not in ("warps", "stages", "maxnreg")}}
    signature, constexprs, attrs, layout = {}, {}, {}, []
    for i, (name, annotation) in enumerate(triton_params(kernel)):
        if annotation == "constexpr":
            signature[name], constexprs[name] = "constexpr", constants[name]
            continue
        base, hint = split_hint(annotation)
        pointer = base.startswith("*")
        signature[name] = f"*{variant.get(base[1:], base[1:])}" if pointer else base
        layout.append(8 if pointer else SIZE[CPP_SCALAR[base]])
        if hint == "16" or (hint == "16?" and variant["ALIGNED"]):
            attrs[(i,)] = [["tt.divisibility", 16]]
    options = dict(num_warps=tune["warps"], num_stages=tune["stages"], num_ctas=1, enable_fp_fusion=True,
                   maxnreg=tune.get("maxnreg"))  # fmt: skip
    compiled = triton.compile(
        ASTSource(fn=fn, signature=signature, constexprs=constexprs, attrs=attrs),
        target=GPUTarget("cuda", arch, 32),
        options=options,
    )
    meta = compiled.metadata
    if meta.global_scratch_size or meta.profile_scratch_size:
        raise SystemExit(f"{kernel.label(variant)} sm_{arch}: needs scratch memory")
    return compiled.asm["cubin"], dict(symbol=meta.name, threads=meta.num_warps * 32, shared=meta.shared,
                                       layout=[*layout, 8, 8], constants=_tiles(kernel, constants))  # fmt: skip


# ---- CUDA C++ --------------------------------------------------------------------------------------------------


def compile_cuda(kernel: Kernel, arch: int) -> tuple[bytes, list[dict]]:
    """One image with every variant: the source sees ``GDN_VARIANTS(X)``, a list of ``X(symbol, keys..., tune...)``."""
    rtc = ctypes.CDLL(str(next(nvidia_package("cuda_nvrtc/lib").glob("libnvrtc.so.*"))))
    variants = cuda_variants(kernel, arch)
    metas = [
        dict(symbol=v.symbol, threads=v.threads, shared=v.shared, layout=None, constants=_tiles(kernel, v.constants)) for v in variants
    ]
    text = f'#define GDN_VARIANTS(X) {" ".join(v.line for v in variants)}\n#include "{kernel.source}"\n'
    options = [f"--gpu-architecture=sm_{arch}", "--std=c++17", f"-I{ROOT}", f"-I{ROOT / 'csrc'}",
               f"-I{nvidia_package('cuda_runtime/include')}"]  # fmt: skip
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    rtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), f"{kernel.name}.cu".encode(), 0, None, None)
    failed = rtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*map(str.encode, options)))
    if failed:
        rtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        rtc.nvrtcGetProgramLog(program, log)
        raise SystemExit(log.value.decode())
    rtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    image = ctypes.create_string_buffer(size.value)
    rtc.nvrtcGetCUBIN(program, image)
    return image.raw, metas


# ---- both ------------------------------------------------------------------------------------------------------


def _tiles(kernel: Kernel, constants: dict) -> dict:
    return {t: int(constants[t]) for t in kernel.tiles}


def inspect(cubin: bytes) -> dict[str, dict]:
    """Per symbol: registers, spill bytes, static shared memory and parameter layout, from the cubin itself."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(cubin)
        f.flush()
        usage = subprocess.check_output([tool, "--dump-resource-usage", f.name], text=True)
        elf = subprocess.check_output([tool, "--dump-elf", f.name], text=True)
    found = {}
    for name, regs, stack, shared in re.findall(r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", usage):
        section = re.split(r"\n\.(?:section|nv|text)", elf.split(f"\n.nv.info.{name}\n", 1)[1], maxsplit=1)[0]
        params = re.findall(r"Ordinal : 0x(\w+)\s+Offset\s+: 0x(\w+)\s+Size\s+: 0x(\w+)", section)
        params = sorted((int(o, 16), int(off, 16), int(size, 16)) for o, off, size in params)
        found[name] = dict(registers=int(regs), stack=int(stack), static_shared=int(shared), params=[p[1:] for p in params])
    return found


def offsets(sizes: list[int]) -> list[tuple[int, int]]:
    """Natural alignment, as in a C struct."""
    at, out = 0, []
    for size in sizes:
        at = (at + size - 1) // size * size
        out.append((at, size))
        at += size
    return out


def build(kernel: Kernel, arch: int) -> tuple[bytes, dict]:
    pack, metas = b"", {}
    if kernel.is_triton:
        compiled = [(v, *compile_triton(kernel, v, arch)) for v in kernel.variants()]
    else:
        image, found = compile_cuda(kernel, arch)
        compiled = [(v, image, meta) for v, meta in zip(kernel.variants(), found)]
    placed: dict[bytes, int] = {}
    for variant, cubin, meta in compiled:
        label = kernel.label(variant)
        if cubin not in placed:
            pack += b"\0" * (-len(pack) % 64)
            placed[cubin] = len(pack)
            pack += cubin
            usage = inspect(cubin)
        meta.update(offset=placed[cubin], bytes=len(cubin), **usage[meta["symbol"]])
        problems = []
        if meta["layout"] and meta["params"] != offsets(meta["layout"]):
            problems.append(f"parameters {meta['params']}, expected {offsets(meta['layout'])}")
        if meta["shared"] + meta["static_shared"] > SHARED_LIMIT[arch]:
            problems.append(f"{meta['shared'] + meta['static_shared']} bytes of shared memory, limit {SHARED_LIMIT[arch]}")
        if kernel.is_hot(variant) and meta["stack"]:
            problems.append(f"{meta['stack']} bytes of stack: a hot kernel must not spill")
        if problems:
            raise SystemExit(f"{label} sm_{arch}: " + "; ".join(problems))
        metas[label] = meta
    return pack, metas


def main() -> None:
    from gdn_ops.table import KERNELS

    name, arch, pack_file, meta_file = sys.argv[1:]
    try:
        pack, metas = build(KERNELS[name], int(arch))
    except BaseException as e:
        print(f"kernel {name} for sm_{arch} failed to compile", file=sys.stderr)
        raise e
    Path(pack_file).write_bytes(pack)
    Path(meta_file).write_text(json.dumps(metas, indent=1))


if __name__ == "__main__":
    main()
