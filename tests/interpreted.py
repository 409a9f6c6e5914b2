"""Triton kernels on the CPU: their own source in the interpreter of Triton 3.6, mended where it differs from a GPU or is slow."""

import contextlib
import functools
import importlib
import inspect
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


@functools.cache
def _mend() -> None:
    """The interpreter truncates float32 to bfloat16 and multiplies bfloat16 bit patterns in ``dot``; GPUs round to nearest
    even and multiply values. Its bounds of ``range`` are arrays of one element, which numpy >= 2.4 refuses as integers."""
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
def _quicken() -> None:
    """Most of the interpreter's time is its own: it lists triton.language at every call of a function, and makes types of
    shapes and a table of dtypes for every value. Each is found once here."""
    import triton.language as tl
    from triton.runtime import interpreter

    @functools.cache
    def builtins_of(package):
        return [name for name, member in inspect.getmembers(package) if tl.core.is_builtin(member)]

    def patch_builtin(package, builder, scope):
        names = builtins_of(package)
        if names and tl.core.is_builtin(getattr(package, names[0])):  # not patched by the calling function
            for name in names:
                interpreter._patch_attr(package, name, getattr(package, name), builder, scope)

    def np_dtype(dtype, original=interpreter._get_np_dtype, found={}):  # noqa: B006
        name = dtype.scalar.name
        if name not in found:
            found[name] = original(dtype.scalar)
        return found[name]

    def new_block(self, element, shape, original=tl.core.block_type.__init__, found={}):  # noqa: B006
        key = element.name, *(n.value if isinstance(n, tl.constexpr) else n for n in shape)
        if key not in found:
            original(self, element, shape)
            found[key] = vars(self).copy()
        vars(self).update(found[key])

    @functools.cache
    def shape_of(sizes):
        return tl.core.tuple([tl.constexpr(n) for n in sizes]), tl.constexpr(torch.Size(sizes).numel())

    def new_tensor(self, handle, type):
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = shape_of(tuple(type.shape) if type.is_block() else ())

    interpreter._patch_builtin, interpreter._get_np_dtype = patch_builtin, np_dtype
    tl.core.block_type.__init__, tl.core.tensor.__init__ = new_block, new_tensor


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
        _mend()
        _quicken()
        for module, name, form in _library_functions():
            patch.setattr(module, name, form)
        yield


def run(kernel, programs: int, values: list) -> None:
    with _interpreting():
        module = importlib.import_module(Path(kernel.source).stem)
        getattr(module, f"{kernel.name}_kernel")[(programs,)](*values)
