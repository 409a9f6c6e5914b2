"""A layer between its projections: the other references one after another, nothing rounded in between."""

from gdn_ops.reference.conv import causal_conv1d_fn, causal_conv1d_update
from gdn_ops.reference.layer import fused_gdn_gating, gated_rmsnorm, split_qkvzba
from gdn_ops.reference.recurrent import chunk_gated_delta_rule_update, fused_recurrent_gated_delta_rule_update


def _sizes(conv_weight, A_log, ssm_pool, state_v_first):
    HV, (K, V) = len(A_log), ssm_pool.shape[:1:-1] if state_v_first else ssm_pool.shape[2:]
    return (len(conv_weight) - HV * V) // (2 * K), HV, K, V


def _same_padding(slots, conv_states, ssm_slots, ssm_pool, min_slot, column=0):
    """Slots of both pools; a row for which either is none has none in both."""
    slots, ssm_slots = slots.cpu().clone(), (slots if ssm_slots is None else ssm_slots).cpu().clone()
    columns = [0] * len(slots) if isinstance(column, int) else [int(c) for c in column]
    for n, c in enumerate(columns):
        table = ssm_slots[n].reshape(-1)
        live = 0 <= c < len(table) and min_slot <= table[c] < len(ssm_pool) and min_slot <= slots[n] < len(conv_states)
        if not live:
            slots[n] = ssm_slots[n] = -1
    return slots, ssm_slots


def _heads(y, H, HV, K, V):
    """Channels [.., D] as q, k, v [.., heads, size]."""
    q, k, v = y.split([H * K, H * K, HV * V], -1)
    return q.unflatten(-1, (H, K)), k.unflatten(-1, (H, K)), v.unflatten(-1, (HV, V))


def gdn_prefill(
    mixed_qkvz, ba, conv_states, ssm_pool, cache_indices, has_initial_state, cu_seqlens, conv_weight, conv_bias, A_log, dt_bias,
    norm_weight, eps=1e-6, scale=None, activation=1, use_qk_l2norm_in_kernel=True, state_v_first=False, interleaved=False,
    norm_activation=1, norm_before_gate=True, hf_rounding=False, out_scale=None, ssm_indices=None, ssm_checkpoints=None,
    conv_checkpoints=None, checkpoint_every=64, checkpoint_indices=None, prefix_lens=None, min_slot=0, write_state=True, pool_scale=None,
    rounding_seed=None,
) -> tuple:  # fmt: skip
    """y, conv_states, ssm_pool, and both checkpoints or None."""
    sizes = _sizes(conv_weight, A_log, ssm_pool, state_v_first)
    qkv, z, b, a = split_qkvzba(mixed_qkvz.cpu(), None if ba is None else ba.cpu(), *sizes, interleaved)
    slots, ssm_slots = _same_padding(cache_indices, conv_states, ssm_indices, ssm_pool, min_slot)
    kept = {} if conv_checkpoints is None else dict(checkpoint_every=checkpoint_every, checkpoint_indices=checkpoint_indices)
    if kept:
        kept |= dict(prefix_lens=prefix_lens)
    y, *convs = causal_conv1d_fn(
        qkv, conv_weight, conv_bias, conv_states, cu_seqlens, slots, has_initial_state, activation, min_slot,
        checkpoints=conv_checkpoints, **kept,
    )  # fmt: skip
    g, beta = fused_gdn_gating(A_log.cpu(), a, b, dt_bias.cpu())
    if not write_state:
        convs[0] = conv_states.detach().to("cpu", y.dtype)
    q, k, v = _heads(y, *sizes)
    o, pool, states = chunk_gated_delta_rule_update(
        q[None], k[None], v[None], g[None], beta[None], ssm_pool, ssm_slots, has_initial_state, cu_seqlens, scale,
        use_qk_l2norm_in_kernel, state_v_first, write_state, ssm_checkpoints, min_slot=min_slot, pool_scale=pool_scale, **kept,
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
    pool_scale=None, rounding_seed=None,
) -> tuple:  # fmt: skip
    """y, conv_states, ssm_pool, and the intermediate states and windows or None."""
    sizes = _sizes(conv_weight, A_log, ssm_pool, state_v_first)
    rows = mixed_qkvz.shape[:-1]
    qkv, z, b, a = split_qkvzba(mixed_qkvz.cpu().flatten(0, -2), None if ba is None else ba.cpu().flatten(0, -2), *sizes, interleaved)
    x = qkv.view(*rows, -1).mT if len(rows) == 2 else qkv
    column = 0 if num_accepted_tokens is None else num_accepted_tokens - 1
    slots, ssm_slots = _same_padding(cache_indices, conv_states, ssm_indices, ssm_pool, min_slot, column)
    y, *convs = causal_conv1d_update(
        x, conv_states, conv_weight, conv_bias, activation, slots, num_accepted_tokens, cu_seqlens, intermediate_windows,
        intermediate_indices, parents, min_slot,
    )  # fmt: skip
    y = y.mT if len(rows) == 2 else y
    batch = rows if len(rows) == 2 else (1, len(qkv)) if cu_seqlens is not None else (len(qkv), 1)
    q, k, v, a, b = (t.reshape(*batch, *t.shape[len(rows if t is not a and t is not b else [0]) :]) for t in (*_heads(y, *sizes), a, b))
    o, pool, states = fused_recurrent_gated_delta_rule_update(
        q, k, v, None, None, A_log, a, dt_bias, b, ssm_pool, ssm_slots, ssm_write_indices, num_accepted_tokens, cu_seqlens,
        intermediate_states, intermediate_indices, parents, None, update_state, scale, use_qk_l2norm_in_kernel, state_v_first, min_slot,
        pool_scale,
    )  # fmt: skip
    o = o.reshape(*rows, *o.shape[2:])
    y = gated_rmsnorm(
        o, norm_weight.cpu(), z, eps, norm_activation, norm_before_gate, out_scale=None if out_scale is None else out_scale.cpu()
    )
    return y, convs[0], pool, states, convs[1] if len(convs) > 1 else None
