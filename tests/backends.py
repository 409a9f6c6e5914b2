"""Runs ops on the CPU twins, on the GPU, or with their GPU kernels interpreted or emulated on the CPU.

The interpreter backend uses the library's launch hook: host functions check, pick and size the grid as for a GPU,
and the launch then runs the kernel's own source over the same packed arguments: Triton kernels in Triton's interpreter
(tests/interpreted.py), CUDA C++ kernels that name tests/emulated_warp.h a block at a time (tests/emulated.py), others on their CPU twins.
"""

import ctypes
import importlib.util
from pathlib import Path

import emulated
import interpreted
import torch

from gdn_ops._library import lib
from gdn_ops.table import KERNELS

ROOT = Path(__file__).resolve().parent.parent
HOOK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_long, ctypes.c_void_p)
CTYPE = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "fp32": ctypes.c_float}
TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "i32": torch.int32, "i64": torch.int64, "i8": torch.int8}


def _codegen():
    """tools/codegen.py, which reads kernel signatures, without putting the source tree on the path."""
    spec = importlib.util.spec_from_file_location("gdn_codegen", ROOT / "tools/codegen.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _pointer(address, dtype):
    """A one-element tensor at an address: the interpreter only needs its pointer and dtype."""
    if not address:
        return torch.empty(1, dtype=dtype)
    return torch.frombuffer((ctypes.c_char * dtype.itemsize).from_address(address), dtype=dtype)


class Backend:
    def __init__(self, name: str):
        self.name, self.device = name, "cuda" if name == "cuda" else "cpu"
        self.launches, self.error = [], None
        self.count_only = False  # launches are listed, nothing runs

    def __enter__(self):
        if self.name == "interpreter":
            self.codegen, self.hook = _codegen(), HOOK(self._launch)
            lib.gdn_set_launch_hook(self.hook)
        return self

    def __exit__(self, *_):
        lib.gdn_set_launch_hook(None)
        if self.error:
            raise self.error

    def _launch(self, name, label, arch, programs, args):
        kernel = KERNELS[name.decode()]
        self.launches.append(label.decode())
        if self.count_only:
            return 1
        if not kernel.is_triton and not emulated.can_run(kernel):
            return 0
        try:
            if not kernel.is_triton:
                emulated.run(self.codegen, kernel, label.decode(), arch, programs, args)
                return 1
            (variant,) = [v for v in kernel.variants() if kernel.label(v) == label.decode()]
            params = self.codegen.triton_params(kernel)
            bases = [(n, self.codegen.split_hint(a)[0]) for n, a in params]
            fields = [(n, ctypes.c_void_p if b[0] == "*" else CTYPE[b]) for n, b in bases if b != "constexpr"]
            struct = type("Args", (ctypes.Structure,), {"_fields_": fields}).from_address(args)
            constants = {**variant, **kernel.tune(variant, arch)}
            values = [
                constants[n] if b == "constexpr"
                else _pointer(getattr(struct, n), TORCH[variant.get(b[1:], b[1:])]) if b[0] == "*"
                else getattr(struct, n)
                for n, b in bases
            ]  # fmt: skip
            interpreted.run(kernel, programs, values)
        except Exception as e:  # a callback cannot raise through C: kept, raised on exit
            self.error = self.error or e
        return 1
