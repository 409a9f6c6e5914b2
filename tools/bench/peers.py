"""Other implementations of the same operations, each where it can be imported: ``PEERS[op][peer](inputs) -> call``.

A call returns the results in the layout of ours ([.., K, V] states). A maker raises ImportError where the peer is
not installed, which prints a word and no number. fla: flash-linear-attention's fla-core 0.6.0, Triton kernels only.
"""

import os

import torch

os.environ.setdefault("FLA_FLASH_QLA", "0")
LOG2E = 1.4426950408889634


def fla_chunk(x):
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule as f

    cu = x["cu"] if x["varlen"] else None
    options = dict(initial_state=x["h0"], output_final_state=True, use_qk_l2norm_in_kernel=True, cu_seqlens=cu)
    return lambda: f(x["q"], x["k"], x["v"], x["g"], x["beta"], **options)


def fla_decode(x):
    from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule as f

    state = x["pool"][1:].contiguous()
    options = dict(initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True)
    return lambda: f(x["q"], x["k"], x["v"], x["g"], beta=x["beta"], **options)


def fla_recurrent(x):
    from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule as f

    cu = x["cu"] if x["varlen"] else None
    options = dict(initial_state=x["h0"], output_final_state=True, use_qk_l2norm_in_kernel=True, cu_seqlens=cu)
    return lambda: f(x["q"], x["k"], x["v"], x["g"], beta=x["beta"], **options)


def fla_cumsum(x):
    from fla.ops.utils import chunk_local_cumsum as f

    return lambda: (f(x["g"], chunk_size=64, cu_seqlens=x["cu_arg"]),)


def fla_kkt(x):
    from fla.ops.common.chunk_scaled_dot_kkt import chunk_scaled_dot_kkt_fwd as f

    g = x["gc"] * LOG2E
    return lambda: (f(x["k"], g, x["beta"], cu_seqlens=x["cu_arg"]),)


def fla_solve(x):
    from fla.ops.utils import solve_tril as f

    return lambda: (f(x["A"], cu_seqlens=x["cu_arg"], output_dtype=x["k"].dtype),)


def fla_kkt_solve(x):
    from fla.ops.gated_delta_rule.chunk_fwd import chunk_gated_delta_rule_fwd_kkt_solve_kernel as kernel
    from fla.ops.utils import prepare_chunk_indices

    k, beta, cu, g = x["k"], x["beta"], x["cu_arg"], x["gc"] * LOG2E
    (B, T, H, K), HV = k.shape, beta.shape[2]
    indices = None if cu is None else prepare_chunk_indices(cu, 64)
    grid = ((T + 63) // 64 if cu is None else len(indices), B * HV)
    sizes = dict(T=T, H=H, HV=HV, K=K, BT=64, BC=16)

    def run():
        A = torch.zeros(B, T, HV, 64, device=k.device, dtype=k.dtype)
        kernel[grid](k=k, g=g, beta=beta, A=A, cu_seqlens=cu, chunk_indices=indices, **sizes)
        return (A,)

    return run


def fla_wu(x):
    from fla.ops.gated_delta_rule.wy_fast import recompute_w_u_fwd as f

    g = x["gc"] * LOG2E
    return lambda: f(x["k"], x["v"], x["beta"], x["Ai"], g, cu_seqlens=x["cu_arg"])


def fla_h(x):
    from fla.ops.common.chunk_delta_h import chunk_gated_delta_rule_fwd_h as f

    g = x["gc"] * LOG2E
    options = dict(initial_state=x["h0"], output_final_state=True, cu_seqlens=x["cu_arg"])
    return lambda: f(x["k"], x["w"], x["u"], g, **options)


def fla_o(x):
    from fla.ops.common.chunk_o import chunk_fwd_o as f

    g, h = x["gc"] * LOG2E, x["h_exact"]
    return lambda: (f(x["q"], x["k"], x["v_new"], h, g, cu_seqlens=x["cu_arg"]),)


def fla_conv(x):
    import torch.nn.functional as F
    from fla.modules.causal_conv1d import causal_conv1d as f

    history = F.pad(x["hist"] * x["has"][:, None, None], (1, 0))
    cu = x["cu"].long() if len(x["lens"]) > 1 else None
    options = dict(initial_state=history, output_final_state=True, activation="silu", cu_seqlens=cu)
    options |= dict(cu_seqlens_cpu=cu.cpu() if cu is not None else None)

    def run():
        y, state = f(x["x"][None], x["weight"], None, **options)
        return y[0], state[..., 1:]

    return run


def fla_conv_update(x):
    import torch.nn.functional as F
    from fla.modules.causal_conv1d import causal_conv1d_update as f

    cache = F.pad(x["states"][1:], (1, 0)).contiguous()

    def run():
        y, state = f(x["x"][:, None], cache, None, x["weight"], None, activation="silu")
        return y[:, 0], state[..., 1:]

    return run


def fla_l2norm(x):
    from fla.modules.norm.l2norm import l2norm as f

    return lambda: (f(x["q"]),)


def fla_gating(x):
    from fla.ops.gated_delta_rule.gate import fused_gdn_gate as f

    return lambda: (f(x["a"], x["A_log"], x["dt_bias"]), torch.sigmoid(x["b"].float()))


def fla_norm(x):
    from fla.modules.norm.fused_norm_gate import rms_norm_gated as f

    return lambda: (f(x["o"], x["z"], x["weight"], None, activation="swish", eps=1e-6),)


PEERS = {
    "chunk_gated_delta_rule": {"fla": fla_chunk},
    "fused_recurrent_gated_delta_rule": {"fla": fla_recurrent},
    "fused_recurrent_gated_delta_rule_update": {"fla": fla_decode},
    "chunk_local_cumsum": {"fla": fla_cumsum},
    "chunk_scaled_dot_kkt": {"fla": fla_kkt},
    "solve_tril": {"fla": fla_solve},
    "chunk_kkt_solve": {"fla": fla_kkt_solve},
    "recompute_w_u": {"fla": fla_wu},
    "chunk_fwd_h": {"fla": fla_h},
    "chunk_fwd_o": {"fla": fla_o},
    "causal_conv1d_fn": {"fla": fla_conv},
    "causal_conv1d_update": {"fla": fla_conv_update},
    "l2norm": {"fla": fla_l2norm},
    "fused_gdn_gating": {"fla": fla_gating},
    "gated_rmsnorm": {"fla": fla_norm},
}
