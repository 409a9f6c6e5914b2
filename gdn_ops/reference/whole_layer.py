"""A layer between its projections: the other references one after another, nothing rounded in between."""

from gdn_ops.reference.conv import causal_conv1d_fn, causal_conv1d_update
from gdn_ops.reference.layer import fused_gdn_gating, gated_rmsnorm, split_qkvzba
from gdn_ops.reference.recurrent import chunk_gated_delta_rule_update, fused_recurrent_gated_delta_rule_update


def _sizes(conv_weight, A_log, ssm_pool, state_v_first):
    HV, (K, V) = len(A_log), ssm_pool.shape[:1:-1] if state_v_first else ssm_pool.shape[2:]
    return (len(conv_weight) - HV * V) // (2 * K), HV, K, V


def _heads(y, H, HV, K, V):
    """Channels [.., D] as q, k, v [.., heads, size]."""
    q, k, v = y.split([H * K, H * K, HV * V], -1)
    return q.unflatten(-1, (H, K)), k.unflatten(-1, (H, K)), v.unflatten(-1, (HV, V))


def gdn_prefill(
    mixed_qkvz, ba, conv_states, ssm_pool, cache_indices, has_initial_state, cu_seqlens, conv_weight, conv_bias, A_log, dt_bias,
    norm_weight, eps=1e-6, scale=None, activation=1, use_qk_l2norm_in_kernel=True, state_v_first=False, interleaved=False,
    norm_activation=1, norm_before_gate=True, hf_rounding=False, out_scale=None, ssm_indices=None, ssm_checkpoints=None,
    conv_checkpoints=None, checkpoint_every=64, checkpoint_indices=None, prefix_lens=None, min_slot=0,
) -> tuple:  # fmt: skip
    """y, conv_states, ssm_pool, and both checkpoints or None."""
    sizes = _sizes(conv_weight, A_log, ssm_pool, state_v_first)
    qkv, z, b, a = split_qkvzba(mixed_qkvz.cpu(), None if ba is None else ba.cpu(), *sizes, interleaved)
    kept = {} if conv_checkpoints is None else dict(checkpoint_every=checkpoint_every, checkpoint_indices=checkpoint_indices)
    if kept:
        kept |= dict(prefix_lens=prefix_lens)
    y, *convs = causal_conv1d_fn(
        qkv, conv_weight, conv_bias, conv_states, cu_seqlens, cache_indices, has_initial_state, activation, min_slot,
        checkpoints=conv_checkpoints, **kept,
    )  # fmt: skip
    g, beta = fused_gdn_gating(A_log.cpu(), a, b, dt_bias.cpu())
    q, k, v = _heads(y, *sizes)
    slots = cache_indices if ssm_indices is None else ssm_indices
    o, pool, states = chunk_gated_delta_rule_update(
        q[None], k[None], v[None], g[None], beta[None], ssm_pool, slots, has_initial_state, cu_seqlens, scale, use_qk_l2norm_in_kernel,
        state_v_first, True, ssm_checkpoints, min_slot=min_slot, **kept,
    )  # fmt: skip
    y = gated_rmsnorm(
        o[0], norm_weight.cpu(), z, eps, norm_activation, norm_before_gate, out_scale=None if out_scale is None else out_scale.cpu()
    )
    return y, convs[0], pool, states, convs[1] if len(convs) > 1 else None


def gdn_decode(
    mixed_qkvz, ba, conv_states, ssm_pool, cache_indices, conv_weight, conv_bias, A_log, dt_bias, norm_weight, eps=1e-6, scale=None,
    activation=1, use_qk_l2norm_in_kernel=True, state_v_first=False, interleaved=False, norm_activation=1, norm_before_gate=True,
    hf_rounding=False, out_scale=None, cu_seqlens=None, ssm_indices=None, ssm_write_indices=None, num_accepted_tokens=None,
    intermediate_states=None, intermediate_windows=None, intermediate_indices=None, parents=None, update_state=True, min_slot=0,
) -> tuple:  # fmt: skip
    """y, conv_states, ssm_pool, and the intermediate states and windows or None."""
    sizes = _sizes(conv_weight, A_log, ssm_pool, state_v_first)
    rows = mixed_qkvz.shape[:-1]
    qkv, z, b, a = split_qkvzba(mixed_qkvz.cpu().flatten(0, -2), None if ba is None else ba.cpu().flatten(0, -2), *sizes, interleaved)
    x = qkv.view(*rows, -1).mT if len(rows) == 2 else qkv
    y, *convs = causal_conv1d_update(
        x, conv_states, conv_weight, conv_bias, activation, cache_indices, num_accepted_tokens, cu_seqlens, intermediate_windows,
        intermediate_indices, parents, min_slot,
    )  # fmt: skip
    y = y.mT if len(rows) == 2 else y
    batch = rows if len(rows) == 2 else (1, len(qkv)) if cu_seqlens is not None else (len(qkv), 1)
    q, k, v, a, b = (t.reshape(*batch, *t.shape[len(rows if t is not a and t is not b else [0]) :]) for t in (*_heads(y, *sizes), a, b))
    slots = cache_indices if ssm_indices is None else ssm_indices
    o, pool, states = fused_recurrent_gated_delta_rule_update(
        q, k, v, None, None, A_log, a, dt_bias, b, ssm_pool, slots, ssm_write_indices, num_accepted_tokens, cu_seqlens,
        intermediate_states, intermediate_indices, parents, None, update_state, scale, use_qk_l2norm_in_kernel, state_v_first, min_slot,
    )  # fmt: skip
    o = o.reshape(*rows, *o.shape[2:])
    y = gated_rmsnorm(
        o, norm_weight.cpu(), z, eps, norm_activation, norm_before_gate, out_scale=None if out_scale is None else out_scale.cpu()
    )
    return y, convs[0], pool, states, convs[1] if len(convs) > 1 else None
