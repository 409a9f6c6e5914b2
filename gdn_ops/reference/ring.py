"""Frozen states and rings."""

import torch

from gdn_ops.reference.base import F64, sequences
from gdn_ops.reference.layer import fused_gdn_gating
from gdn_ops.reference.recurrent import l2norm


def folded(h: torch.Tensor, k: torch.Tensor, u: torch.Tensor, g: torch.Tensor, entries: int) -> torch.Tensor:
    """h ``[HV, K, V]`` after the first entries of a ring: ``h <- exp(g_j) h + k_j u_j^T``."""
    for j in range(entries):
        k_j = k[j].repeat_interleave(len(h) // k.shape[1], 0)
        h = g[j].exp()[:, None, None] * h + k_j[:, :, None] * u[j][:, None, :]
    return h


def fused_recurrent_gated_delta_rule_ring(
    q, k, v, g, beta, A_log, a, dt_bias, b, ssm_pool, ring_k, ring_u, ring_g, ring_lengths, ssm_indices, cu_seqlens=None, scale=None,
    use_qk_l2norm_in_kernel=False, state_v_first=False, min_slot=0,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """o, the pool and the rings as they are afterwards, in float64: what was stored is not rounded."""
    g, beta, a, b = (x if x is None or x.dim() == 3 else x.flatten(2) for x in (g, beta, a, b))
    if A_log is not None:
        g, beta = fused_gdn_gating(*(x.detach().cpu() for x in (A_log, a, b, dt_bias)))
    pool, *rings = (x.detach().to("cpu", F64, copy=True) for x in (ssm_pool, ring_k, ring_u, ring_g))
    R, K, o = ring_k.shape[1], k.shape[-1], torch.zeros(*v.shape, dtype=F64)
    for n, (row, begin, end) in enumerate(sequences(*k.shape[:2], cu_seqlens)):
        slot = ssm_indices[n].item()
        m = ring_lengths[slot].item() if min_slot <= slot < len(pool) else -1
        if not 0 <= m <= R or end - begin > R:
            continue
        h = folded(pool[slot].mT if state_v_first else pool[slot], *(x[slot] for x in rings), m)
        if m + end - begin > R:
            pool[slot], m = h.mT if state_v_first else h, 0
        for t in range(begin, end):
            q_t, k_t, v_t, g_t = (x[row, t].detach().to("cpu", F64) for x in (q, k, v, g))
            beta_t = torch.ones_like(g_t) if beta is None else beta[row, t].detach().to("cpu", F64)
            if use_qk_l2norm_in_kernel:
                q_t, k_t = l2norm(q_t), l2norm(k_t)
            q_h, k_h = (x.repeat_interleave(len(g_t) // len(k_t), 0) for x in (q_t, k_t))
            h = g_t.exp()[:, None, None] * h
            u_t = beta_t[:, None] * (v_t - torch.einsum("hkv,hk->hv", h, k_h))
            h = h + k_h[:, :, None] * u_t[:, None, :]
            o[row, t] = torch.einsum("hkv,hk->hv", h, q_h) * (K**-0.5 if scale is None else scale)
            for ring, x in zip(rings, (k_t, u_t, g_t)):
                ring[slot, m + t - begin] = x
    return o, pool, *rings


def advance_rings(ring_lengths, ssm_indices, ring_size, tokens=None, num_accepted_tokens=None, cu_seqlens=None, min_slot=0) -> torch.Tensor:
    lengths = ring_lengths.detach().cpu().clone()
    for n, slot in enumerate(ssm_indices.tolist()):
        T = 1 if tokens is None else tokens
        if cu_seqlens is not None:
            begin, end = (max(x, 0) if tokens is None else min(max(x, 0), tokens) for x in cu_seqlens[n : n + 2].tolist())
            T = max(end - begin, 0)
        accepted = T if num_accepted_tokens is None else num_accepted_tokens[n].item()
        if min_slot <= slot < len(lengths) and 0 <= lengths[slot] <= ring_size and T <= ring_size and 0 <= accepted <= T:
            lengths[slot] = (0 if lengths[slot] + T > ring_size else lengths[slot]) + accepted
    return lengths


def commit_accepted(ssm_pool, ring_k, ring_u, ring_g, num_entries, ssm_indices, state_v_first=False, min_slot=0) -> torch.Tensor:
    """The pool afterwards, in float64, not rounded."""
    pool, *rings = (x.detach().to("cpu", F64, copy=True) for x in (ssm_pool, ring_k, ring_u, ring_g))
    for slot, entries in zip(ssm_indices.tolist(), num_entries.tolist()):
        if min_slot <= slot < len(pool) and 0 <= entries <= ring_k.shape[1]:
            h = folded(pool[slot].mT if state_v_first else pool[slot], *(x[slot] for x in rings), entries)
            pool[slot] = h.mT if state_v_first else h
    return pool
