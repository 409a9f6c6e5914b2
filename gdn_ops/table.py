"""The table: one row per operator. Build, registration, tracing, tests, benchmarks and README read it.

An op exists because it has a row here; a kernel exists because a row names it.
"""

from gdn_ops.spec import FLOAT, HALF, Kernel, Op, Out

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
    Op(
        name="recompute_w_u",
        schema="(Tensor k, Tensor v, Tensor beta, Tensor A, Tensor? g=None, Tensor? cu_seqlens=None, float? gate_base=None) -> (Tensor, Tensor)",
        shapes={"k": "B T H K", "v": "B T HV V", "A": "B T HV BT"},
        outputs=(Out("w", "B T HV K", "k"), Out("u", "B T HV V", "k")),
        replaces="FLA recompute_w_u_fwd",
        kernels=(
            Kernel(
                name="recompute_w_u",
                source="triton_src/recompute_w_u.py",
                keys={"T": HALF, "BT": (16, 32, 64), "ALIGNED": (True, False)},
                where=lambda v: v["BT"] == 64 or not v["ALIGNED"],
                tune=lambda v, arch: dict(warps=4 if v["ALIGNED"] or v["BT"] < 64 else 8, stages=2, BN=64),
            ),
        ),
    ),
)

OPS = {op.name: op for op in TABLE}
KERNELS = {kernel.name: kernel for op in TABLE for kernel in op.kernels}
