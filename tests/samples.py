"""A few valid calls of every op, for tests that run through all of them: ``SAMPLES[op]`` is a list of builders, each
``builder(device) -> arguments by name``. The first is what a model would call with; the others differ in layout,
packing, dtype or optional arguments. Small, seeded, and new tensors on every call.
"""

import torch
from sample_inputs import BF16, FP16, FP32, HV, SHORT, D, Draw, H, cumsum, fwd_h, fwd_o, index, kkt, solve, tokens, wu
from samples_conv import CONV
from samples_layer import LAYER
from samples_recurrent import ODD, RECURRENT
from samples_ring import RING

# ---- model-level ops -------------------------------------------------------------------------------------------


def rule(packed=False, v_first=False, dtype=BF16, K=D, V=D, state=True, size={}, **more):  # noqa: B006
    def build(device):
        x, r, N = tokens(device, packed, dtype, K, V, **size)
        h0 = r.normal(N, HV, *((V, K) if v_first else (K, V)), scale=0.1) if state else None
        return x | dict(initial_state=h0, output_final_state=True, state_v_first=v_first, use_qk_l2norm_in_kernel=True) | more

    return build


def gating(dtype=BF16):
    def build(device):
        r = Draw(device)
        return dict(A_log=r.normal(HV), a=r.normal(70, HV, dtype=dtype), b=r.normal(70, HV, dtype=dtype), dt_bias=r.normal(HV))

    return build


def projections(dtype=BF16, interleaved=False, one_row=False, K=D, V=D, T=9):
    def build(device):
        r, wide = Draw(device), 2 * H * K + 2 * HV * V
        mixed = r.normal(T, wide + 2 * HV, dtype=dtype)
        args = dict(mixed=mixed if one_row else mixed[:, :wide], ba=None if one_row else mixed[:, wide:])
        return args | dict(H=H, HV=HV, K=K, V=V, interleaved=interleaved)

    return build


def post_conv(dtype=BF16, K=D, V=D, T=9, grouped=False):
    def build(device):
        r = Draw(device)
        a, b = (r.normal(T, *((H, HV // H) if grouped else (HV,)), dtype=dtype) for _ in "ab")
        qkv = r.normal(T, 2 * H * K + HV * V, dtype=dtype)
        return dict(qkv=qkv, a=a, b=b, A_log=r.normal(HV), dt_bias=r.normal(HV), H=H, K=K, V=V)

    return build


def norm(dtype=BF16, width=D, gated=True):
    def build(device):
        r = Draw(device)
        return dict(x=r.normal(9, HV, width, dtype=dtype), weight=r.normal(width, dtype=dtype)) | (
            dict(z=r.normal(9, HV, width, dtype=dtype)) if gated else {}
        )

    return build


def pools(dtype=FP32, layers=(3,), slot=(HV, D, 32), channels_last=False, states=None, states_dtype=FP32, mask=None, **slots):
    """A pool of 6 slots with a gap after each, and 4 rows, one of them padding."""

    def build(device):
        r = Draw(device)
        if channels_last:
            pool = r.normal(*layers, 6, 2, *slot[::-1], dtype=dtype)[..., 1, :, :].mT
        else:
            pool = r.normal(*layers, 6, 2, *slot, dtype=dtype).select(len(layers) + 1, 1)
        args = dict(pool=pool, slot_dim=len(layers)) | {n: r.ints(v, torch.int32) for n, v in slots.items()}
        if states:
            args[states] = r.normal(*layers, 4, *((3,) if "inter" in states else ()), *slot, dtype=states_dtype)
        return args | ({mask: r.ints([1, 1, 0, 1], torch.bool)} if mask else {})

    return build


def norm_fp8(scale=False, **more):
    def build(device):
        args = norm(**{n: v for n, v in more.items() if n != "quant_group"})(device)
        return args | (dict(out_scale=torch.tensor([0.02], device=device)) if scale else dict(quant_group=more.get("quant_group", 0)))

    return build


def l2(*shape, dtype=BF16):
    return lambda device: dict(x=Draw(device).normal(*shape, dtype=dtype))


WIDE = dict(K=256, V=200)


def rules(**size):
    return [
        rule(size=size),
        rule(packed=True, v_first=True, size=size),
        rule(packed=True, state=False, beta=None, size=size),
        rule(dtype=FP16, size=size, **ODD),
        rule(v_first=True, size=size, **WIDE),
    ]


FEW = dict(T=6, lens=SHORT)
SAMPLES = {
    "l2norm": [l2(2, 33, H, D), l2(5, 100, dtype=FP32), l2(3, 2048, dtype=FP16)],
    "chunk_local_cumsum": [cumsum(), cumsum(packed=True), cumsum(packed=True, reverse=True), cumsum(vector=True)],
    "chunk_scaled_dot_kkt": [kkt(), kkt(packed=True), kkt(dtype=FP16, K=48), kkt(K=256)],
    "solve_tril": [solve(), solve(packed=True), solve(C=16), solve(C=32)],
    "chunk_kkt_solve": [kkt(), kkt(packed=True), kkt(dtype=FP16, K=48), kkt(K=256)],
    "recompute_w_u": [wu(), wu(packed=True), wu(dtype=FP16, **ODD), wu(**WIDE)],
    "chunk_fwd_h": [fwd_h(), fwd_h(packed=True, v_first=True), fwd_h(packed=True, state=False), fwd_h(dtype=FP16, **ODD), fwd_h(**WIDE)],
    "chunk_fwd_o": [fwd_o(), fwd_o(packed=True, v_first=True), fwd_o(packed=True), fwd_o(dtype=FP16, **ODD), fwd_o(**WIDE)],
    "prepare_lens": [index(), index(dtype=torch.int32)],
    "prepare_chunk_indices": [index(chunk_size=64, total_tokens=163), index(chunk_size=64, total_tokens=163, dtype=torch.int32)],
    "prepare_chunk_offsets": [index(chunk_size=64), index(chunk_size=64, dtype=torch.int32)],
    "chunk_gated_delta_rule": rules(),
    "fused_recurrent_gated_delta_rule": [*rules(**FEW), rule(dtype=FP32, size=FEW)],
    "fused_gdn_gating": [gating(), gating(FP32)],
    "split_qkvzba": [projections(), projections(interleaved=True), projections(FP16, one_row=True, K=48, V=100), projections(FP32, True, True)],
    "fused_post_conv_prep": [post_conv(), post_conv(FP16, grouped=True, **ODD), post_conv(FP32, K=64)],
    "gated_rmsnorm": [norm(), norm(gated=False), norm(dtype=FP32, width=96), norm_fp8(True), norm_fp8(True, dtype=FP16, width=96)],
    "gated_rmsnorm_fp8": [norm_fp8(), norm_fp8(dtype=FP16, width=256, quant_group=128), norm_fp8(dtype=FP32, width=96, quant_group=48)],
    "copy_slots": [
        pools(src_indices=[5, 0, 3, -1], dst_indices=[1, 2, 4, 3], mask="mask"),
        pools(BF16, (3,), (192, 3), True, src_indices=[5, 0], dst_indices=[[1, 2], [4, 6]]),
        pools(FP16, (), src_indices=[5, 0, 3, -1], dst_indices=[1, 2, 4, 3]),
    ],
    "zero_slots": [pools(indices=[5, 0, 3, -1]), pools(FP16, (), (192, 3), indices=[5, 0, 3, -1], mask="mask")],
    "gather_states": [
        pools(indices=[5, 0, 5, -1], mask="has_initial_state"),
        pools(BF16, (), indices=[5, 0, 3, -1], mask="has_initial_state"),
        lambda device: pools(BF16, indices=[5, 0, 3, -1])(device) | dict(output_dtype=FP32),
    ],
    "scatter_states": [
        pools(indices=[5, 0, 3, -1], states="states"),
        pools(BF16, (), indices=[5, 0, 3, -1], states="states", mask="mask"),
        pools(FP16, (3,), (192, 3), True, states="states", indices=[5, 0, 3, -1]),
    ],
    "scatter_accepted_states": [
        pools(ssm_indices=[5, 0, 3, -1], num_accepted_tokens=[1, 3, 2, 1], states="intermediate_states"),
        pools(BF16, (), (192, 3), True, states="intermediate_states", states_dtype=BF16, ssm_indices=[5, 0, 3, 1],
              num_accepted_tokens=[1, 3, 0, 4], intermediate_indices=[2, 0, 1, 3]),
    ],
} | CONV | LAYER | RECURRENT | RING  # fmt: skip
