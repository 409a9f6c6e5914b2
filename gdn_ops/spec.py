"""What a row of the table is made of: ``Op``, ``Kernel`` and ``Out``. Plain data, imports nothing heavy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

ARCHS = (80, 86, 89, 90, 100, 103, 120)
# Shared memory one block may use, in bytes.
SHARED_LIMIT = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 103: 227 << 10, 120: 99 << 10}

HALF = ("bf16", "fp16")
FLOAT = ("bf16", "fp16", "fp32")

# Activations, as every op takes them (csrc/runtime/activation.h).
NONE, SILU, SIGMOID = 0, 1, 2


@dataclass(frozen=True)
class Kernel:
    """One kernel source and the variants compiled from it.

    ``name``: the kernel is ``<name>_kernel`` in ``source``, its CPU twin ``gdn::cpu::<name>``.
    ``keys``: selection keys in order, each with its values: dtypes (``"bf16"``), sizes or flags.
    ``where``: keeps a combination of keys or drops it.
    ``tune``: (keys, arch) -> ``warps``, ``stages`` and every compile-time constant that is not a key; ``SHARED`` of a CUDA C++
    kernel is its dynamic shared memory in bytes.
    ``tiles``: which of those constants the host function reads to size its grid.
    ``hot``: registers must not spill; all variants, or those it says.
    ``cpu``: has a CPU twin; without one the host function takes another path on the CPU.
    ``early``: launched while the kernel ahead still runs (programmatic dependent launch); waits for it itself.
    """

    name: str
    source: str
    keys: dict[str, tuple] = field(default_factory=dict)
    where: Callable[[dict], bool] | None = None
    tune: Callable[[dict, int], dict] = lambda v, arch: dict(warps=4, stages=1)
    tiles: tuple[str, ...] = ()
    hot: bool | Callable[[dict], bool] = False
    cpu: bool = True
    early: bool = False

    def variants(self) -> list[dict]:
        """Every combination of keys that is compiled."""
        combos = (dict(zip(self.keys, values)) for values in itertools.product(*self.keys.values()))
        return [v for v in combos if self.where is None or self.where(v)]

    def label(self, variant: dict) -> str:
        """``l2norm-T.bf16-ALIGNED.1``: the variant's name in the binary and in messages."""
        return "-".join([self.name, *(f"{k}.{int(x) if isinstance(x, bool) else x}" for k, x in variant.items())])

    def is_hot(self, variant: dict) -> bool:
        return self.hot(variant) if callable(self.hot) else self.hot

    @property
    def is_triton(self) -> bool:
        return self.source.endswith(".py")


@dataclass(frozen=True)
class Out:
    """One output, as tracing needs it: ``like`` an argument, or ``shape`` in size letters and ``dtype``.

    Letters are bound by ``Op.shapes``; integers are
    letters by themselves; derived are ``N`` (sequences), ``NT`` (chunks), ``D`` (convolution channels), ``HV`` (= ``H`` where no argument
    says) and ``S0 S1`` (the state's last two sizes, in the order ``state_v_first`` asks for); ``*x`` stands for the dimensions of
    argument x but its last. ``dtype`` names an argument (a
    tensor or a dtype; the first of several that is given; as ``like`` if none is), is ``"fp32"`` or ``"fp8"``, or a function
    from the arguments to one of these.
    ``resized``: arguments -> the dimension of ``like`` that has another size, and that size.
    ``when`` names the flag without which the output is empty (shape ``[0]``).
    ``swapped``: arguments -> whether the last two dimensions are swapped in memory.
    """

    name: str
    shape: str = ""
    dtype: str | Callable[[dict], str] = ""
    like: str = ""
    resized: Callable[[dict], tuple] | None = None
    when: str = ""
    swapped: Callable[[dict], bool] | None = None


@dataclass(frozen=True)
class Op:
    """One operator: ``torch.ops.gdn.<name>``, its host function ``csrc/<name>.cpp`` and its kernels.

    ``out``: there is a second form ``torch.ops.gdn.<name>.out(..., *, out) -> ()`` that writes to given memory: the
    host function's last parameters are its ``out_args``, absent in the first form.
    """

    name: str
    schema: str
    shapes: dict[str, str]
    outputs: tuple[Out, ...]
    kernels: tuple[Kernel, ...] = ()
    dtypes: str = "bf16 fp16"
    replaces: str = ""
    out: bool = False

    @property
    def out_args(self) -> list[str]:
        """What the form ``.out`` takes for each output: ``out``, or ``out_<output>`` where there are several."""
        if not self.out:
            return []
        return ["out"] if len(self.outputs) == 1 else [f"out_{o.name}" for o in self.outputs]

    @property
    def out_schema(self) -> str:
        """Nothing is returned: torch's functionalisation takes no custom operator whose result aliases an argument."""
        args = self.schema[: self.schema.rindex("->")].strip().removesuffix(")")
        given = ", ".join(f"Tensor({chr(ord('z') - i)}!) {name}" for i, name in enumerate(self.out_args))
        return f"{args}, *, {given}) -> ()"
