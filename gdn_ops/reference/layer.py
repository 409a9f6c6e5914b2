"""What surrounds the rule in a layer, beside the convolution: gates, gated norm."""

import torch

from gdn_ops.reference.base import F64


def fused_gdn_gating(A_log, a, b, dt_bias, softplus_beta=1.0, softplus_threshold=20.0):
    x = a.to(F64) + dt_bias.to(F64)
    g = -A_log.to(F64).exp() * torch.nn.functional.softplus(x, softplus_beta, softplus_threshold)
    return g, torch.sigmoid(b.to(F64))


def gated_rmsnorm(x, weight, z=None, eps=1e-6, activation=1, norm_before_gate=True, group_size=0, out_scale=None):
    """y; with ``out_scale`` what is rounded to fp8."""
    x, weight = x.to(F64), weight.to(F64)
    act = [lambda z: z, torch.nn.functional.silu, torch.sigmoid][activation]
    z = torch.ones_like(x) if z is None else act(torch.where(x == 0, 0, z.reshape(x.shape).to(F64)))  # of padding: anything
    groups = (x if norm_before_gate else x * z).unflatten(-1, (-1, group_size or x.shape[-1]))
    y = (groups * torch.rsqrt((groups * groups).mean(-1, keepdim=True) + eps)).flatten(-2) * weight
    y = y * z if norm_before_gate else y
    return y if out_scale is None else (y / out_scale.to(F64)).clamp(-448, 448)


def gated_rmsnorm_fp8(*args, group_size=0, quant_group=0, **options) -> tuple[torch.Tensor, torch.Tensor]:
    """What is rounded to fp8, and the scales."""
    y = gated_rmsnorm(*args, group_size=group_size, **options)
    groups = y.unflatten(-1, (-1, quant_group or group_size or y.shape[-1]))
    scales = groups.abs().amax(-1).clamp_min(1e-10) / 448
    return (groups / scales[..., None]).flatten(-2), scales


def split_qkvzba(mixed, ba, H, HV, K, V, interleaved=False) -> tuple[torch.Tensor, ...]:
    """qkv, z, b, a. Exact."""
    r, T = HV // H, len(mixed)
    ba = mixed[:, -2 * HV :] if ba is None else ba
    mixed = mixed[:, : 2 * H * K + 2 * HV * V]
    if interleaved:
        q, k, v, z = (x.reshape(T, -1) for x in mixed.unflatten(1, (H, -1)).split([K, K, r * V, r * V], 2))
        b, a = (x.reshape(T, HV) for x in ba.unflatten(1, (H, -1)).split([r, r], 2))
    else:
        q, k, v, z = mixed.split([H * K, H * K, HV * V, HV * V], 1)
        b, a = ba.split([HV, HV], 1)
    return torch.cat([q, k, v], 1), z.reshape(T, HV, V), b, a


def fused_post_conv_prep(qkv, a, b, A_log, dt_bias, H, K, V, use_qk_l2norm=True, output_g_exp=False) -> tuple[torch.Tensor, ...]:
    T, HV = len(qkv), len(A_log)
    q, k, v = qkv.detach().to("cpu", F64).split([H * K, H * K, HV * V], 1)
    q, k = (x.reshape(T, H, K) for x in (q, k))
    if use_qk_l2norm:
        q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    g, beta = fused_gdn_gating(*(x.detach().cpu() for x in (A_log, a.reshape(T, HV), b.reshape(T, HV), dt_bias)))
    return q, k, v.reshape(T, HV, V), g.exp() if output_g_exp else g, beta
