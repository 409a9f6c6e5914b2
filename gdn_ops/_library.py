"""The compiled library: loading it and its few C functions."""

import ctypes
import json
from pathlib import Path

import torch

PATH = Path(__file__).parent / "lib" / "libgdn_ops.so"


def _load() -> ctypes.CDLL:
    if not PATH.exists():
        raise ImportError(f"gdn_ops: {PATH} is missing; install the wheel, or build it with tools/build_kernels.py")
    major, minor = (int(x) for x in torch.__version__.split(".")[:2])
    if (major, minor) < (2, 10):
        raise ImportError(f"gdn_ops needs torch >= 2.10, this is torch {torch.__version__}")
    torch.ops.load_library(str(PATH))
    lib = ctypes.CDLL(str(PATH))
    for name in ("gdn_build_info", "gdn_warmup", "gdn_arch", "gdn_find_variant"):
        getattr(lib, name).restype = ctypes.c_char_p
    lib.gdn_find_variant.argtypes = (ctypes.c_char_p, ctypes.POINTER(ctypes.c_int))
    lib.gdn_set_launch_hook.restype = lib.gdn_pretend_capability.restype = None
    return lib


lib = _load()


def call(op, out, *args):
    """``op(*args)``, in new memory or in ``out``: a tensor, or one for every result."""
    if out is None:
        return op.default(*args)
    if isinstance(out, torch.Tensor):
        op.out(*args, out=out)
    else:
        op.out(*args, **dict(zip((a.name for a in op.out._schema.arguments if a.kwarg_only), out, strict=True)))
    return out


def build_info() -> dict:
    """What this build holds.

    Returns a dict: ``version``, ``archs``, ``ops``, ``kernels`` (variants of each), the versions of Triton, NVRTC and
    the torch headers it was built with, and ``sources``, a hash of every source file.
    """
    return json.loads(lib.gdn_build_info())


def warmup(device: torch.device | int | str | None = None) -> None:
    """Loads every kernel on a CUDA device now instead of on first use. Raises RuntimeError if that is not possible."""
    if device is None:
        index = torch.cuda.current_device() if torch.cuda.is_available() else 0
    else:
        index = device if isinstance(device, int) else torch.device(device).index or 0
    if error := lib.gdn_warmup(index):
        raise RuntimeError(error.decode())
