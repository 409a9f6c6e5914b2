"""Runs ops on the CPU twins, on the GPU, or with their GPU kernels interpreted or emulated on the CPU.

The interpreter backend uses the library's launch hook: host functions check, pick and size the grid as for a GPU,
and the launch then runs the kernel's own source over the same packed arguments: Triton kernels in Triton's interpreter,
CUDA C++ kernels that name tests/emulated_warp.h a block at a time (tests/emulated.py), others on their CPU twins.
"""

import contextlib
import ctypes
import functools
import importlib.util
from pathlib import Path

import emulated
import pytest
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


@functools.cache
def _mend_interpreter():
    """Triton 3.6's interpreter truncates float32 to bfloat16 and multiplies bfloat16 bit patterns in ``dot``; GPUs round
    to nearest even and multiply values. Its bounds of ``range`` are arrays of one element, which numpy >= 2.4 refuses as
    integers."""
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def to_bf16(x):
        return torch.from_numpy(np.ascontiguousarray(x)).to(torch.bfloat16).view(torch.uint16).numpy()

    def to_fp32(x):
        return (np.asarray(x).astype(np.uint32) << 16).view(np.float32)

    def cast_impl(self, src, dst_type, original=InterpreterBuilder.cast_impl):
        kinds = src.dtype.scalar, dst_type.scalar
        if kinds == (tl.float32, tl.bfloat16):
            return TensorHandle(to_bf16(np.asarray(src.data)), tl.bfloat16)
        if kinds == (tl.bfloat16, tl.float32):
            return TensorHandle(to_fp32(src.data), tl.float32)
        return original(self, src, dst_type)

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        a, b = (to_fp32(x.data) if x.dtype.scalar == tl.bfloat16 else x.data.astype(np.float32) for x in (a, b))
        return TensorHandle(np.matmul(a, b) + d.data, d.dtype.scalar)

    def patch_tensor(tensor, scope, original=interpreter._patch_lang_tensor):
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot = cast_impl, create_dot
    interpreter._patch_lang_tensor = patch_tensor


@functools.cache
def _library_functions():
    """``(module, name, interpreted form)`` of what triton.language itself writes in Triton, such as ``tl.sum``: compiled
    functions, unless TRITON_INTERPRET was set when anything first imported triton (torch.compile may have)."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    forms = {}
    return [
        (module, name, forms.setdefault(fn, InterpretedFunction(fn.fn)))
        for module in (tl, tl.standard, tl.random)
        for name, fn in vars(module).items()
        if isinstance(fn, JITFunction)
    ]


@contextlib.contextmanager
def _interpreting():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        patch.syspath_prepend(ROOT / "triton_src")
        _mend_interpreter()
        for module, name, form in _library_functions():
            patch.setattr(module, name, form)
        yield


def _run_interpreted(kernel, programs, values):
    with _interpreting():
        module = importlib.import_module(Path(kernel.source).stem)
        getattr(module, f"{kernel.name}_kernel")[(programs,)](*values)


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
            _run_interpreted(kernel, programs, values)
        except Exception as e:  # a callback cannot raise through C: kept, raised on exit
            self.error = self.error or e
        return 1
