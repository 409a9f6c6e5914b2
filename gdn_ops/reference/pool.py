"""Housekeeping of pools, row by row on copies: the pool as it is afterwards, or what was gathered. Exact."""

import torch


def _cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if x.dtype != dtype and dtype == torch.float16:
        x = x.float().clamp(-65504, 65504)  # NaN stays
    return x.to(dtype)


def _rows(pool, slot_dim):
    """The pool as [slots, L, ...] (a view)."""
    return pool.transpose(0, 1) if slot_dim else pool[:, None]


def _live(slot, pool, min_slot=0) -> bool:
    return max(min_slot, 0) <= int(slot) < len(pool)


def copy_slots(pool, src_indices, dst_indices, mask=None, min_slot=0, slot_dim=1) -> torch.Tensor:
    before, pool = _rows(pool.detach().cpu(), slot_dim), pool.detach().cpu().clone()
    after = _rows(pool, slot_dim)
    for n, (src, targets) in enumerate(
        zip(src_indices.tolist(), (dst_indices if dst_indices.dim() == 2 else dst_indices[:, None]).tolist())
    ):
        for dst in targets:
            if (mask is None or mask[n]) and _live(src, after, min_slot) and _live(dst, after, min_slot):
                after[dst] = before[src]
    return pool


def zero_slots(pool, indices, mask=None, min_slot=0, slot_dim=1) -> torch.Tensor:
    pool = pool.detach().cpu().clone()
    rows = _rows(pool, slot_dim)
    for n, slot in enumerate(indices.tolist()):
        if _live(slot, rows, min_slot) and (mask is None or mask[n]):
            rows[slot] = 0
    return pool


def gather_states(pool, indices, has_initial_state=None, output_dtype=None, min_slot=0, slot_dim=1) -> torch.Tensor:
    rows = _rows(pool.detach().cpu(), slot_dim)
    states = torch.zeros(len(indices), *rows.shape[1:]).to(output_dtype or pool.dtype)
    for n, slot in enumerate(indices.tolist()):
        if _live(slot, rows, min_slot) and (has_initial_state is None or has_initial_state[n]):
            states[n] = _cast(rows[slot], states.dtype)
    return states.transpose(0, 1).contiguous() if slot_dim else states[:, 0]


def scatter_states(pool, states, indices, mask=None, min_slot=0, slot_dim=1) -> torch.Tensor:
    states, pool = _rows(states.detach().cpu(), slot_dim), pool.detach().cpu().clone()
    rows = _rows(pool, slot_dim)
    for n, slot in enumerate(indices.tolist()):
        if _live(slot, rows, min_slot) and (mask is None or mask[n]):
            rows[slot] = _cast(states[n], pool.dtype)
    return pool


def scatter_accepted_states(
    pool, intermediate_states, ssm_indices, num_accepted_tokens, intermediate_indices=None, min_slot=0, slot_dim=1
) -> torch.Tensor:
    sources, pool = _rows(intermediate_states.detach().cpu(), slot_dim), pool.detach().cpu().clone()  # [rows, L, S', ...]
    rows = _rows(pool, slot_dim)
    for n, (slot, accepted) in enumerate(zip(ssm_indices.tolist(), num_accepted_tokens.tolist())):
        row = n if intermediate_indices is None else int(intermediate_indices[n])
        if _live(slot, rows, min_slot) and _live(row, sources) and 1 <= accepted <= sources.shape[2]:
            rows[slot] = _cast(sources[row][:, accepted - 1], pool.dtype)
    return pool
