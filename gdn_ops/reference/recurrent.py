"""The recurrence token by token, and on a pool of states."""

import torch

from gdn_ops.reference.base import F64, sequences
from gdn_ops.reference.layer import fused_gdn_gating


def l2norm(x: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    x = x.to(F64)
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + eps)


def gated_delta_rule(
    q, k, v, g=None, beta=None, scale=None, initial_state=None, cu_seqlens=None, use_qk_l2norm=False, state_v_first=False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The recurrence, token by token (all sequences and heads at once); on the CPU whatever the inputs' device.

    h <- exp(g_t) h;  u = beta_t (v_t - h^T k_t);  h <- h + k_t u^T;  o_t = scale h^T q_t

    Returns o ``[B, T, HV, V]`` (zeros for tokens outside ``cu_seqlens``) and the final states ``[N, HV, K, V]`` (last two
    swapped for ``state_v_first``).
    """
    q, k, v = (x.detach().to("cpu", F64) for x in (q, k, v))
    (B, T, H, K), (HV, V) = k.shape, v.shape[2:]
    g = torch.zeros(B, T, HV, dtype=F64) if g is None else g.detach().to("cpu", F64).view(B, T, HV)
    beta = torch.ones(B, T, HV, dtype=F64) if beta is None else beta.detach().to("cpu", F64).view(B, T, HV)
    if use_qk_l2norm:
        q, k = l2norm(q), l2norm(k)
    q, k = (x.repeat_interleave(HV // H, 2) for x in (q * (K**-0.5 if scale is None else scale), k))

    spans = sequences(B, T, cu_seqlens)
    if initial_state is None:
        h = torch.zeros(len(spans), HV, K, V, dtype=F64)
    else:
        h = initial_state.detach().to("cpu", F64, copy=True)
        h = h.transpose(-1, -2).contiguous() if state_v_first else h
    o = torch.zeros(B, T, HV, V, dtype=F64)
    for t in range(max((end - start for _, start, end in spans), default=0)):
        n = [i for i, (_, start, end) in enumerate(spans) if start + t < end]
        b, i = [spans[j][0] for j in n], [spans[j][1] + t for j in n]
        b_h, b_k = h[n] * g[b, i].exp()[..., None, None], k[b, i]  # [n, HV, K, V], [n, HV, K]
        u = beta[b, i][..., None] * (v[b, i] - torch.einsum("nhkv,nhk->nhv", b_h, b_k))
        h[n] = b_h = b_h + b_k[..., :, None] * u[..., None, :]
        o[b, i] = torch.einsum("nhkv,nhk->nhv", b_h, q[b, i])
    return o, h.transpose(-1, -2) if state_v_first else h


def fused_recurrent_gated_delta_rule(
    q, k, v, g=None, beta=None, scale=None, initial_state=None, output_final_state=True, cu_seqlens=None,
    use_qk_l2norm_in_kernel=False, state_v_first=False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    return gated_delta_rule(q, k, v, g, beta, scale, initial_state, cu_seqlens, use_qk_l2norm_in_kernel, state_v_first)


def _slot(table: torch.Tensor, n: int, column: int) -> int:
    return table[n].item() if table.dim() == 1 else table[n, column].item()


def fused_recurrent_gated_delta_rule_update(
    q, k, v, g, beta, A_log, a, dt_bias, b, ssm_pool, ssm_indices, ssm_write_indices=None, num_accepted_tokens=None,
    cu_seqlens=None, intermediate_states=None, intermediate_indices=None, parents=None, has_initial_state=None, update_state=True,
    scale=None, use_qk_l2norm_in_kernel=False, state_v_first=False, min_slot=0, pool_scale=None, rounding_seed=None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """o, and the pool and the intermediate states as they are afterwards, in float64: what was stored is not rounded
    (and fp8 pools are multiplied by their scale)."""
    g, beta, a, b = (x if x is None or x.dim() == 3 else x.flatten(2) for x in (g, beta, a, b))
    if A_log is not None:
        g, beta = fused_gdn_gating(*(x.detach().cpu() for x in (A_log, a, b, dt_bias)))
    pool = ssm_pool.detach().to("cpu", F64, copy=True)
    if pool_scale is not None:
        pool *= pool_scale.cpu().to(F64)[:, None, None]
    steps = None if intermediate_states is None else intermediate_states.detach().to("cpu", F64, copy=True)
    o = torch.zeros(*v.shape, dtype=F64)
    write = ssm_indices if ssm_write_indices is None else ssm_write_indices
    tables = [t for t in (ssm_indices, write, parents) if t is not None and t.dim() == 2]
    columns = [t.shape[1] for t in [*tables, *([] if steps is None else [steps])]]
    stores = {}  # what has been stored is not read in the same call
    for n, (row, begin, end) in enumerate(sequences(*k.shape[:2], cu_seqlens)):
        accepted = 1 if num_accepted_tokens is None else num_accepted_tokens[n].item()
        if end - begin > min([*columns, end - begin]) or not (ssm_indices.dim() == 1 or 1 <= accepted <= ssm_indices.shape[1]):
            continue
        slot = _slot(ssm_indices, n, accepted - 1)
        if not min_slot <= slot < len(pool):
            continue
        known = has_initial_state is None or has_initial_state[n]
        states = {-1: pool[slot] if known else torch.zeros_like(pool[0])}  # after each token, and before all
        for t in range(end - begin):
            parent = t - 1 if parents is None else parents[n, t].item()
            h = states[parent if 0 <= parent < t else -1][None]
            at = [None if x is None else x[row : row + 1, begin + t : begin + t + 1] for x in (q, k, v, g, beta)]
            o_t, h = gated_delta_rule(*at, scale, h, None, use_qk_l2norm_in_kernel, state_v_first)
            o[row, begin + t], states[t] = o_t[0, 0], h[0]
            to = n if intermediate_indices is None else intermediate_indices[n].item()
            if steps is not None and 0 <= to < len(steps):
                steps[to, t] = h[0]
            if update_state and (write.dim() == 2 or t == end - begin - 1):
                stores[_slot(write, n, t)] = h[0]
    for slot, h in stores.items():
        if min_slot <= slot < len(pool):
            pool[slot] = h
    return o, pool, steps


def fused_recurrent_gated_delta_rule_packed_decode(
    mixed_qkv, a, b, A_log, dt_bias, scale, ssm_pool, ssm_indices, use_qk_l2norm_in_kernel=False, state_v_first=False, min_slot=0,
    pool_scale=None, rounding_seed=None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """out ``[B, HV, V]``, and the pool afterwards."""
    K, V = ssm_pool.shape[:1:-1] if state_v_first else ssm_pool.shape[2:]
    HV = len(A_log)
    H = (mixed_qkv.shape[1] - HV * V) // (2 * K)
    q, k, v = mixed_qkv[:, None].split([H * K, H * K, HV * V], -1)
    q, k, v = (x.unflatten(-1, (heads, -1)) for x, heads in ((q, H), (k, H), (v, HV)))
    a, b = a.flatten(1)[:, None], b.flatten(1)[:, None]
    o, pool, _ = fused_recurrent_gated_delta_rule_update(
        q, k, v, None, None, A_log, a, dt_bias, b, ssm_pool, ssm_indices, scale=scale,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, state_v_first=state_v_first, min_slot=min_slot, pool_scale=pool_scale,
    )  # fmt: skip
    return o[:, 0], pool


def chunk_gated_delta_rule_update(
    q, k, v, g, beta, ssm_pool, ssm_indices, has_initial_state=None, cu_seqlens=None, scale=None, use_qk_l2norm_in_kernel=False,
    state_v_first=False, write_state=True, checkpoints=None, checkpoint_every=64, checkpoint_indices=None, prefix_lens=None, min_slot=0,
    pool_scale=None, rounding_seed=None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """o, and the pool and the checkpoints as they are afterwards, in float64: what was stored is not rounded (and fp8 pools
    are multiplied by their scale)."""
    unit = 1 if pool_scale is None else pool_scale.cpu().to(F64)[:, None, None]
    before, pool = (ssm_pool.detach().to("cpu", F64, copy=True) * unit for _ in range(2))
    kept = None if checkpoints is None else checkpoints.detach().to("cpu", F64, copy=True)
    o = torch.zeros(*v.shape, dtype=F64)
    for n, (row, begin, end) in enumerate(sequences(*k.shape[:2], cu_seqlens)):
        slot = ssm_indices[n].item()
        if begin >= end or not min_slot <= slot < len(pool):
            continue
        h = before[slot][None] if has_initial_state is None or has_initial_state[n] else torch.zeros_like(before[:1])
        prefix = 0 if prefix_lens is None else prefix_lens[n].item()
        every = checkpoint_every if kept is not None else 1 << 62
        column = 0
        while begin < end:
            stop = min(end, begin + every - prefix % every)
            at = [None if x is None else x[row : row + 1, begin:stop] for x in (q, k, v, g, beta)]
            o_n, h = gated_delta_rule(*at, scale, h, None, use_qk_l2norm_in_kernel, state_v_first)
            o[row, begin:stop] = o_n[0]
            begin, prefix = stop, prefix + stop - begin
            if kept is not None and prefix % every == 0:
                to = checkpoint_indices[n, column].item() if column < checkpoint_indices.shape[1] else -1
                if 0 <= to < len(kept):
                    kept[to] = h[0]
                column += 1
        if write_state:
            pool[slot] = h[0]
    return o, pool, kept
