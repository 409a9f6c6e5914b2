"""Every op in float64, from its definition: what tests compare with. Slow and plain on purpose."""

import torch

F64 = torch.float64


def l2norm(x: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    x = x.to(F64)
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + eps)


def sequences(rows: int, tokens: int, cu_seqlens: torch.Tensor | None) -> list[tuple[int, int, int]]:
    """``(batch row, first token, end)`` of every sequence. Offsets are clamped to the tokens there are."""
    if cu_seqlens is None:
        return [(b, 0, tokens) for b in range(rows)]
    bounds = [min(max(c, 0), tokens) for c in cu_seqlens.tolist()]
    return [(0, start, max(start, end)) for start, end in zip(bounds, bounds[1:])]


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
