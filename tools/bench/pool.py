"""Cases of what works on pools: housekeeping, prefill in place, decode from packed projection rows."""

import inputs as I
import torch
from cases import PREFILL, Case, call, layers_of, rule, size
from inputs import BF16, DEVICE, GPU, HD
from timers import BANDWIDTH

FP32 = torch.float32
SHARE = 0.85  # of the bandwidth of a device copy, as a goal

# ---- housekeeping: all layers of a pool in one launch ----------------------------------------------------------

SHAPES = {  # layers, slots of a request, rows
    "states fp32": ((8, 32, HD, HD), FP32, 64), "states bf16": ((8, 32, HD, HD), BF16, 64), "histories bf16": ((36, 8192, 3), BF16, 256),
    "one state fp32": ((36, 32, HD, HD), FP32, 1),
} if GPU else {"states fp32": ((2, 4, 16, 16), FP32, 3), "histories bf16": ((2, 24, 3), BF16, 3)}  # fmt: skip


def slots(shape: tuple, dtype, rows: int) -> dict:
    """A pool of twice as many slots as rows, and rows to scatter."""
    layers, *slot = shape
    pool = torch.empty(layers, 2 * rows + 1, *slot, dtype=dtype, device=DEVICE)
    states = torch.empty(layers, rows, *slot, dtype=dtype, device=DEVICE)
    r = I.randn(0)
    for t in (*pool, *states):
        t.copy_(r(*t.shape))
    order = torch.randperm(2 * rows, generator=torch.Generator().manual_seed(0)).to(DEVICE, torch.int32) + 1
    return dict(pool=pool, states=states, src=order[:rows], dst=order[rows:])


def copied(x):
    return call("copy_slots", pool=x["pool"], src_indices=x["src"], dst_indices=x["dst"]), lambda _: (x["pool"][:, x["dst"].long()],)


def zeroed(x):
    pool = x["pool"].clone()
    return call("zero_slots", pool=pool, indices=x["dst"]), lambda _: (pool[:, x["dst"].long()],)


def gathered(x):
    return call("gather_states", pool=x["pool"], indices=x["src"])


def scattered(x):
    pool = x["pool"].clone()
    return call("scatter_states", pool=pool, states=x["states"], indices=x["dst"]), lambda _: (pool[:, x["dst"].long()],)


def from_source(x):
    return (x["pool"][:, x["src"].long()],)


OPS = {
    "copy_slots": (copied, from_source, 2), "gather_states": (gathered, from_source, 2), "scatter_states": (scattered, lambda x: (x["states"],), 2),
    "zero_slots": (zeroed, lambda x: (torch.zeros_like(x["states"]),), 1),
}  # fmt: skip


def housekeeping():
    for name, (shape, dtype, rows) in SHAPES.items():
        for op, (ours, truth, passes) in OPS.items():
            moved = passes * rows * dtype.itemsize * torch.Size(shape).numel()
            yield Case(
                "pool", f"{op} {name}, {rows} of {shape[0]} layers", op, inputs=lambda i, s=(shape, dtype, rows): slots(*s), ours=ours,
                truth=truth, marks=(0,), nbytes=lambda x, n=moved: n, goal=1e6 * moved / (SHARE * BANDWIDTH), peers=False,
            )  # fmt: skip


# ---- prefill on a pool -----------------------------------------------------------------------------------------


def on_pool(x):
    N, HV = x["h0"].shape[:2]
    pool = torch.zeros(N + 1, HV, HD, HD, device=DEVICE)
    pool[1:] = x["h0"].mT
    idx = torch.arange(1, N + 1, device=DEVICE, dtype=torch.int32)
    args = {n: x[n] for n in ("q", "k", "v", "g", "beta")} | dict(ssm_pool=pool, ssm_indices=idx)
    args |= dict(cu_seqlens=x["cu"] if x["varlen"] else None, use_qk_l2norm_in_kernel=True, state_v_first=True)
    return call("chunk_gated_delta_rule_update", **args), lambda o: (o, pool[1:].mT)


def update():
    for name, lens, H, HV, goal in PREFILL:
        if (name, H, HV) not in (("1 x 1024", 16, 32), ("1 x 16384", 16, 32), ("16 ragged", 16, 32), ("1 x 8192", 4, 8)):
            continue
        if not GPU:
            lens, H, HV = [min(n, 90) for n in lens[: 5 if "ragged" in name else 1]], 1, 2
        T = sum(lens)
        yield Case(
            "update", f"{name} ({H}/{HV})", "chunk_gated_delta_rule_update",
            inputs=lambda i, lens=lens, H=H, HV=HV: I.prefill(lens, H, HV), ours=on_pool, oracle=rule("fused_recurrent_gated_delta_rule"),
            truth=lambda x, T=T: I.delta_rule(x, min(T, I.PREFIX)), marks=(1e-2, 1e-2), flops=164e3 * T * HV, goal=goal, peers=False,
            nbytes=lambda x: size(x["q"], x["k"], x["v"], x["v"], x["g"], x["beta"]) + 2 * size(x["h0"]),
        )  # fmt: skip


# ---- decode from packed rows -----------------------------------------------------------------------------------


def packed(x):
    """Columns of one projection row [q | k | v | b | a]."""
    B, HV, pool = len(x["idx"]), x["v"].shape[2], x["pool"].mT.contiguous()
    row = torch.cat([x[n].flatten(1) for n in ("q", "k", "v", "b", "a")], 1)
    args = dict(mixed_qkv=row[:, : -2 * HV], b=row[:, -2 * HV : -HV], a=row[:, -HV:], A_log=x["A_log"], dt_bias=x["dt_bias"], scale=None)
    out = torch.empty(B, 1, HV, HD, dtype=BF16, device=DEVICE)
    args |= dict(ssm_pool=pool, out=out, ssm_indices=x["idx"], use_qk_l2norm_in_kernel=True, state_v_first=True)
    return call("fused_recurrent_gated_delta_rule_packed_decode", **args), lambda _: (out, pool[1:].mT)


def packed_decode():
    for state in (FP32, BF16):
        for H, HV in ((16, 32), (4, 8)) if GPU else ((2, 4),):
            for B in (1, 32, 64, 256) if GPU else (3,):
                one = 2 * B * HV * HD * HD * state.itemsize
                yield Case(
                    "packed", f"{'fp32' if state == FP32 else 'bf16'} VK {H}/{HV} B {B}", "fused_recurrent_gated_delta_rule_packed_decode",
                    inputs=lambda i, B=B, H=H, HV=HV, s=state: I.decode(B, H, HV, s, i), ours=packed, truth=I.decode_step,
                    marks=(4e-3, 1e-4 if state == FP32 else 4e-3), nbytes=lambda x, one=one: one, layers=layers_of(one / 2, 256), peers=False,
                )  # fmt: skip
