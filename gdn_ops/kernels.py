"""Kernels that several rows of the table name, and how kernels are tuned."""

from gdn_ops.spec import FLOAT, HALF, SHARED_LIMIT, Kernel


def _recurrent_tune(v: dict, arch: int) -> dict:
    """BV: columns of V a warp holds. V first, 4 loads of 16 bytes a lane. K first, 32 bytes of each row, so that sectors are used
    whole, and 4 warps side by side cover 128 bytes."""
    halves = v["S"] != "fp32" and v["BK"] != 256
    if v["VFIRST"]:
        return dict(warps=1, BV={64: 8, 128: 4, 256: 4}[v["BK"]] << halves, WARPS=1)
    return dict(warps=4, BV=16 if halves else 8, WARPS=4)


FUSED_RECURRENT = Kernel(
    name="fused_recurrent",
    source="csrc/cuda/fused_recurrent.cu",
    keys={"S": FLOAT, "VFIRST": (False, True), "BK": (64, 128, 256), "ALIGNED": (False, True)},
    # Not ALIGNED: the dtype of states is an argument, S that of the numbers in registers.
    where=lambda v: v["BK"] != 256 if v["ALIGNED"] else v["BK"] != 64 and v["S"] == "fp32",
    tune=_recurrent_tune,
    tiles=("BV", "WARPS"),
)


def _step_tune(v: dict, arch: int) -> dict:
    """BLOCKS: of a multiprocessor at once. Halves have 4 warps, so that what every thread does besides its part of the state
    weighs less: they are bound by instructions before memory. See docs/performance.md."""
    halves = v["S"] != "fp32"
    return dict(warps=4 if halves else 8, WARPS=4 if halves else 8, BLOCKS=4 if halves else 2)


FUSED_RECURRENT_STEP = Kernel(
    name="fused_recurrent_step",
    source="csrc/cuda/fused_recurrent_step.cu",
    keys={"S": FLOAT, "VFIRST": (False, True), "BK": (64, 128), "BV": (32, 64)},
    tune=_step_tune,
    hot=True,
    cpu=False,
    early=True,
)


_BARRIER = 16  # bytes behind a state that is moved whole


def _staged(arch: int, state: int) -> dict:
    """A state of so many bytes in SHARED memory, and as many BLOCKS of a multiprocessor as have room for one (beside 12 KiB), three at
    most. A third block is worth a few bytes of spilled registers."""
    return dict(BLOCKS=max(1, min(3, (SHARED_LIMIT[arch] + 1024) // (state + (12 << 10)))), SHARED=state)


def _verify_tune(v: dict, arch: int) -> dict:
    """A state is in shared memory where there is room for three, beside a row's tokens, and bulk copies move it."""
    state = v["BK"] * 64 * (4 if v["S"] == "fp32" else 2)
    roomy = arch >= 90 and SHARED_LIMIT[arch] > 200 << 10
    return dict(warps=8, BV=64, BLOCKS=3 if arch == 90 else 2, SHARED=state + _BARRIER if roomy else 0)


FUSED_RECURRENT_VERIFY = Kernel(
    name="fused_recurrent_verify",
    source="csrc/cuda/fused_recurrent_verify.cu",
    keys={"S": FLOAT, "VFIRST": (False, True), "BK": (64, 128)},
    tune=_verify_tune,
    tiles=("BV",),
    hot=True,
    cpu=False,
    early=True,
)


def _ring_tune(v: dict, arch: int) -> dict:
    """BV: columns of V a block holds: all of them with one token; with more there is no room for them."""
    if v["NT"] == 1:
        return dict(warps=8, BV=v["BK"], **_staged(arch, v["BK"] ** 2 * (4 if v["S"] == "fp32" else 2)))
    return dict(warps=8, BV={64: 64, 128: 64, 256: 32}[v["BK"]], BLOCKS=2, SHARED=0)


FUSED_RECURRENT_RING = Kernel(
    name="fused_recurrent_ring",
    source="csrc/cuda/fused_recurrent_ring.cu",
    keys={"S": FLOAT, "VFIRST": (False, True), "BK": (64, 128, 256), "NT": (1, 4)},
    where=lambda v: v["BK"] != 256 or (v["NT"] == 4 and v["S"] == "fp32"),  # 256: any sizes, and states of any dtype
    tune=_ring_tune,
    tiles=("BV",),
    early=True,
)


def _decode_step_tune(v: dict, arch: int) -> dict:
    """64 KiB of state are in registers: two such blocks ask for as much as three whose states are in shared memory. See docs/performance.md."""
    size = 128 * 128 * (4 if v["S"] == "fp32" else 2) >> (v["CLUSTER"] == 2)
    return dict(warps=8, BLOCKS=2, SHARED=0) if size > 32 << 10 else dict(warps=8, **_staged(arch, size + _BARRIER))


GDN_DECODE_STEP = Kernel(
    name="gdn_decode_step",
    source="csrc/cuda/gdn_decode_step.cu",
    keys={"S": FLOAT, "T": HALF, "VFIRST": (False, True), "CLUSTER": (0, 1, 2)},
    where=lambda v: v["CLUSTER"] != 2 or v["S"] == "fp32",
    tune=_decode_step_tune,
    cpu=False,
    early=True,
)
# Chunk kernels that hold whole rows of K: fast ones for 64-token chunks and K == BK, else any K <= BK.
CHUNK_BK = {(64, True, 64), (64, True, 128), (64, False, 128), (64, False, 256), (32, False, 256), (16, False, 256)}

PREPARE_CHUNK_OFFSETS = Kernel(
    name="prepare_chunk_offsets",
    source="triton_src/prepare_chunk_offsets.py",
    tune=lambda v, arch: dict(warps=4, stages=1, BN=1024),
    tiles=("BN",),
)


def _rec_tune(v: dict, arch: int) -> dict:
    """As deep a pipeline as shared memory allows (H200, 1 x 16384, 16/32: 2 stages 0.58 ms, 3 stages 0.41)."""
    return dict(warps=4, stages={80: 2, 86: 1, 89: 1, 120: 1}.get(arch, 3), BT=64)


CHUNK_PREP = Kernel(
    name="chunk_prep",
    source="triton_src/chunk_prep.py",
    keys={"T": HALF, "BK": (64, 128)},
    tune=lambda v, arch: dict(warps=4, stages=1, BT=64),
    cpu=False,
)
CHUNK_REC = Kernel(
    name="chunk_rec",
    source="triton_src/chunk_rec.py",
    keys={"T": HALF, "BK": (64, 128), "BV": (32, 64), "POOL": (False, True)},
    tune=_rec_tune,
    cpu=False,
)


def _conv_variants(v: dict) -> bool:
    """Models have W = 4: pairs of channels, and packs beyond the plain walk, for it alone."""
    packs = v["VEC"] == 4 and (v["W"] == 4 or v["ROLE"] == 0) or v["VEC"] == 2 and v["W"] == 4 and v["ROLE"] == 0
    return v["VEC"] == 1 or v["T"] != "fp32" and packs


# Both convolution ops are one kernel: an update is a prefill of rows whose history counts. ROLE: csrc/cuda/causal_conv1d.h.
CONV = Kernel(
    name="causal_conv1d",
    source="csrc/cuda/causal_conv1d.cu",
    keys={"T": FLOAT, "W": (2, 3, 4), "VEC": (4, 2, 1), "ROLE": (0, 1, 2)},
    where=_conv_variants,
    tune=lambda v, arch: dict(warps=4, THREADS=128, U=4 if v["ROLE"] else 8),
    tiles=("THREADS",),
    hot=True,
    early=True,
)

GATED_RMSNORM = Kernel(
    name="gated_rmsnorm",
    source="csrc/cuda/gated_rmsnorm.cu",
    keys={"T": FLOAT, "FP8": (False, True), "ALIGNED": (True, False)},
    tune=lambda v, arch: dict(warps=4, THREADS=128, BLOCKS=9 if v["T"] != "fp32" else 8),
    tiles=("THREADS", "BLOCKS"),
    hot=lambda v: v["ALIGNED"],
    early=True,
)
# Every op on a pool of slots is one kernel, which moves bytes; dtypes and unit sizes are arguments.
MOVE_SLOTS = Kernel(
    name="move_slots",
    source="csrc/cuda/move_slots.cu",
    tune=lambda v, arch: dict(warps=8, THREADS=256, U=4),
    tiles=("THREADS", "U"),
    hot=True,
)
