"""Every op in float64, from its definition: what tests compare with. Slow and plain on purpose."""

import itertools
import math

import torch

from gdn_ops.reference.base import F64, sequences
from gdn_ops.reference.conv import causal_conv1d_fn, causal_conv1d_update, conv_pack_gdn_decode_inputs, flat_channels  # noqa: F401
from gdn_ops.reference.layer import (  # noqa: F401
    fused_gdn_gating,
    fused_post_conv_prep,
    gated_rmsnorm,
    gated_rmsnorm_fp8,
    split_qkvzba,
)
from gdn_ops.reference.pool import copy_slots, gather_states, scatter_accepted_states, scatter_states, zero_slots  # noqa: F401
from gdn_ops.reference.recurrent import (  # noqa: F401
    chunk_gated_delta_rule_update,
    fused_recurrent_gated_delta_rule,
    fused_recurrent_gated_delta_rule_packed_decode,
    fused_recurrent_gated_delta_rule_update,
    gated_delta_rule,
    l2norm,
)
from gdn_ops.reference.ring import advance_rings, commit_accepted, fused_recurrent_gated_delta_rule_ring  # noqa: F401
from gdn_ops.reference.whole_layer import gdn_decode, gdn_prefill  # noqa: F401

chunk_gated_delta_rule = fused_recurrent_gated_delta_rule  # the same function of the same inputs


def chunks(rows: int, tokens: int, cu_seqlens: torch.Tensor | None, size: int) -> list[tuple[int, int, int, int]]:
    """``(sequence, batch row, first token, end)`` of every chunk, in the order of a compact list."""
    spans = enumerate(sequences(rows, tokens, cu_seqlens))
    return [(n, b, t, min(t + size, end)) for n, (b, start, end) in spans for t in range(start, end, size)]


def _decay(g: torch.Tensor | None, like: torch.Tensor, gate_base: float | None) -> torch.Tensor:
    """Cumulative gates ``[B, T, HV]`` as natural logarithms; zeros for None."""
    if g is None:
        return torch.zeros(like.shape[:3], dtype=F64)
    return g.detach().to("cpu", F64) * (1.0 if gate_base is None else math.log(gate_base))


def _heads_first(x: torch.Tensor, HV: int) -> torch.Tensor:
    """``[L, H, ...]`` of a chunk as ``[HV, L, ...]``: value head j uses key head j // (HV / H)."""
    return x.repeat_interleave(HV // x.shape[1], 1).transpose(0, 1)


def prepare_lens(cu_seqlens) -> torch.Tensor:
    bounds = [max(c, 0) for c in cu_seqlens.tolist()]
    return torch.tensor([max(end - start, 0) for start, end in zip(bounds, bounds[1:])], dtype=cu_seqlens.dtype)


def prepare_chunk_offsets(cu_seqlens, chunk_size) -> torch.Tensor:
    """Chunks of all sequences before each, and of all."""
    counts = [-(-length // chunk_size) for length in prepare_lens(cu_seqlens).tolist()]
    return torch.tensor([0, *itertools.accumulate(counts)], dtype=cu_seqlens.dtype)


def prepare_chunk_indices(cu_seqlens, chunk_size, total_tokens) -> torch.Tensor:
    """(sequence, chunk) of every chunk, then -1 up to the most rows there can be."""
    spans = sequences(1, total_tokens, cu_seqlens)
    rows = [(n, c) for n, (_, start, end) in enumerate(spans) for c in range(-(-(end - start) // chunk_size))]
    indices = torch.full((-(-total_tokens // chunk_size) + len(spans), 2), -1, dtype=cu_seqlens.dtype)
    indices[: len(rows)] = torch.tensor(rows, dtype=cu_seqlens.dtype).view(-1, 2)[: len(indices)]
    return indices


def chunk_local_cumsum(g, chunk_size, reverse=False, scale=None, cu_seqlens=None) -> torch.Tensor:
    """Cumulative sum within each chunk of each sequence, from its end where reverse."""
    g = g.detach().to("cpu", F64)
    y = torch.zeros_like(g)
    for _, b, s, e in chunks(*g.shape[:2], cu_seqlens, chunk_size):
        y[b, s:e] = g[b, s:e].flip(0).cumsum(0).flip(0) if reverse else g[b, s:e].cumsum(0)
    return y * (1 if scale is None else scale)


def chunk_scaled_dot_kkt(k, g=None, beta=None, cu_seqlens=None, chunk_size=64, gate_base=None) -> torch.Tensor:
    """A[t, j] = beta_t (k_t . k_j) exp(g_t - g_j) for j < t, chunk by chunk."""
    k = k.detach().to("cpu", F64)
    like = next((x for x in (beta, g) if x is not None), k)
    B, T, HV = like.shape[:3]
    G = _decay(g, like, gate_base)
    beta = torch.ones(B, T, HV, dtype=F64) if beta is None else beta.detach().to("cpu", F64)
    A = torch.zeros(B, T, HV, chunk_size, dtype=F64)
    for _, b, s, e in chunks(B, T, cu_seqlens, chunk_size):
        b_k, b_G = _heads_first(k[b, s:e], HV), G[b, s:e].T  # [HV, L, K], [HV, L]
        b_A = beta[b, s:e].T[..., None] * (b_k @ b_k.transpose(1, 2)) * (b_G[..., None] - b_G[:, None]).tril().exp()
        A[b, s:e, :, : e - s] = b_A.tril(-1).transpose(0, 1)
    return A


def chunk_kkt_solve(k, g=None, beta=None, cu_seqlens=None, chunk_size=64, gate_base=None) -> torch.Tensor:
    """(I + A)^-1 with the A of chunk_scaled_dot_kkt."""
    return solve_tril(chunk_scaled_dot_kkt(k, g, beta, cu_seqlens, chunk_size, gate_base), cu_seqlens)


def solve_tril(A: torch.Tensor, cu_seqlens: torch.Tensor | None = None) -> torch.Tensor:
    """(I + A)^-1, chunk by chunk; of A only what is below the diagonal counts."""
    A = A.detach().to("cpu", F64)
    B, T, _, C = A.shape
    Ai = torch.zeros_like(A)
    for _, b, s, e in chunks(B, T, cu_seqlens, C):
        b_A = A[b, s:e, :, : e - s].transpose(0, 1).tril(-1)  # [H, L, L]
        eye = torch.eye(e - s, dtype=F64)
        Ai[b, s:e, :, : e - s] = torch.linalg.solve_triangular(eye + b_A, eye.expand_as(b_A), upper=False).transpose(0, 1)
    return Ai


def recompute_w_u(k, v, beta, A, g=None, cu_seqlens=None, gate_base=None) -> tuple[torch.Tensor, torch.Tensor]:
    """w = A (k * beta * exp(g)), u = A (v * beta), chunk by chunk."""
    k, v, beta, A = (x.detach().to("cpu", F64) for x in (k, v, beta, A))
    G = _decay(g, v, gate_base)
    (B, T, HV, C), K = A.shape, k.shape[-1]
    w, u = torch.zeros(B, T, HV, K, dtype=F64), torch.zeros_like(v)
    for _, b, s, e in chunks(B, T, cu_seqlens, C):
        b_A, b_beta = A[b, s:e, :, : e - s].transpose(0, 1), beta[b, s:e].T[..., None]  # [HV, L, L], [HV, L, 1]
        w[b, s:e] = (b_A @ (_heads_first(k[b, s:e], HV) * b_beta * G[b, s:e].T.exp()[..., None])).transpose(0, 1)
        u[b, s:e] = (b_A @ (_heads_first(v[b, s:e], HV) * b_beta)).transpose(0, 1)
    return w, u


def chunk_fwd_h(
    k, w, u, g=None, initial_state=None, output_final_state=False, chunk_size=64, save_new_value=True, cu_seqlens=None,
    state_v_first=False, gate_base=None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """State at the start of every chunk, v_new = u - w h, and the state at the end."""
    k, w, u = (x.detach().to("cpu", F64) for x in (k, w, u))
    G = _decay(g, u, gate_base)
    (B, T, HV, V), K = u.shape, k.shape[-1]
    spans, rows = sequences(B, T, cu_seqlens), -(-T // chunk_size)
    state = torch.zeros(len(spans), HV, K, V, dtype=F64)
    if initial_state is not None:
        state += initial_state.detach().to("cpu", F64).transpose(-1, -2) if state_v_first else initial_state.detach().to("cpu", F64)
    h = torch.zeros(B, rows if cu_seqlens is None else rows + len(spans), HV, K, V, dtype=F64)
    v_new = torch.zeros_like(u)
    for i, (n, b, s, e) in enumerate(chunks(B, T, cu_seqlens, chunk_size)):
        h.view(-1, HV, K, V)[i] = state[n]
        b_v = u[b, s:e].transpose(0, 1) - w[b, s:e].transpose(0, 1) @ state[n]  # [HV, L, V]
        v_new[b, s:e] = b_v.transpose(0, 1)
        b_G = G[b, s:e].T  # [HV, L]
        b_k = _heads_first(k[b, s:e], HV) * (b_G[:, -1:] - b_G).exp()[..., None]
        state[n] = b_G[:, -1].exp()[:, None, None] * state[n] + b_k.transpose(1, 2) @ b_v
    order = (lambda x: x.transpose(-1, -2)) if state_v_first else (lambda x: x)
    return order(h), v_new if save_new_value else v_new.new_empty(0), order(state) if output_final_state else v_new.new_empty(0)


def chunk_fwd_o(q, k, v, h, g=None, scale=None, cu_seqlens=None, chunk_size=64, state_v_first=False, gate_base=None) -> torch.Tensor:
    """o = scale (exp(g) (q h) + tril(q k^T exp(g_i - g_j)) v), chunk by chunk."""
    q, k, v, h = (x.detach().to("cpu", F64) for x in (q, k, v, h))
    G = _decay(g, v, gate_base)
    (B, T, HV, V), K = v.shape, k.shape[-1]
    h = (h.transpose(-1, -2) if state_v_first else h).reshape(-1, HV, K, V)
    o = torch.zeros_like(v)
    for i, (_, b, s, e) in enumerate(chunks(B, T, cu_seqlens, chunk_size)):
        b_q, b_k, b_G = _heads_first(q[b, s:e], HV), _heads_first(k[b, s:e], HV), G[b, s:e].T
        b_P = (b_q @ b_k.transpose(1, 2)).tril() * (b_G[:, :, None] - b_G[:, None, :]).tril().exp()
        o[b, s:e] = (b_G.exp()[..., None] * (b_q @ h[i]) + b_P @ v[b, s:e].transpose(0, 1)).transpose(0, 1)
    return o * (K**-0.5 if scale is None else scale)
