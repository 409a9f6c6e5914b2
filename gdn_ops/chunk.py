"""Prefill: the step ops of the chunk algorithm. Documented forms of ``torch.ops.gdn`` operators."""

import torch

_ops = torch.ops.gdn


def recompute_w_u(
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    A: torch.Tensor,
    g: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    gate_base: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``w = A (k * beta * exp(g))`` and ``u = A (v * beta)`` per chunk: the WY form of the delta rule.

    Args:
        k: ``[B, T, H, K]``, bf16 or fp16, K <= 256.
        v: ``[B, T, HV, V]`` in k's dtype, V <= 256, HV a multiple of H.
        beta: ``[B, T, HV]``, fp32 or k's dtype, any strides.
        A: ``[B, T, HV, C]``, fp32 or k's dtype: row t holds the columns of its chunk of C = 16, 32 or 64 tokens of
            ``(I + strict_lower(beta K K^T decay))^-1`` (see ``solve_tril``).
        g: ``[B, T, HV]``, the gates' logarithms summed up within each chunk; None: no decay.
        cu_seqlens: ``[N + 1]`` int32 or int64, offsets of packed sequences (then B == 1).
        gate_base: None: natural logarithms; 2: base 2.

    Returns:
        w ``[B, T, HV, K]`` and u ``[B, T, HV, V]`` in k's dtype; zeros for tokens outside ``cu_seqlens``.

    Raises:
        RuntimeError: every wrong shape, dtype, device or stride, in one message.

    Source: ``recompute_w_u_fwd`` of flash-linear-attention.
    """
    return _ops.recompute_w_u(k, v, beta, A, g, cu_seqlens, gate_base)
