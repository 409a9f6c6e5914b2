"""The table: one row per operator. Build, registration, tracing, tests, benchmarks and README read it.

An op exists because it has a row here; a kernel exists because a row names it.
"""

from gdn_ops.spec import FLOAT, Kernel, Op, Out

TABLE = (
    Op(
        name="l2norm",
        schema="(Tensor x, float eps=1e-6) -> Tensor",
        shapes={"x": "... D"},
        outputs=(Out("y", like="x"),),
        dtypes="bf16 fp16 fp32",
        replaces="FLA l2norm",
        kernels=(
            Kernel(
                name="l2norm",
                source="triton_src/l2norm.py",
                keys={"T": FLOAT, "BD": (64, 128, 256, 2048)},
                tune=lambda v, arch: dict(warps=4, stages=1, BR=max(1, 2048 // v["BD"])),
                tiles=("BR",),
            ),
        ),
    ),
)

OPS = {op.name: op for op in TABLE}
KERNELS = {kernel.name: kernel for op in TABLE for kernel in op.kernels}
