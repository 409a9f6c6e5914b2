"""Prefill: the step ops from gates and keys to (I + A)^-1. Documented forms of ``torch.ops.gdn`` operators."""

import torch

_ops = torch.ops.gdn


def chunk_local_cumsum(
    g: torch.Tensor, chunk_size: int, reverse: bool = False, scale: float | None = None, cu_seqlens: torch.Tensor | None = None
) -> torch.Tensor:
    """Cumulative sum of gates over the tokens of each chunk of each sequence, in float32.

    Args:
        g: ``[B, T, H]`` (a gate a head) or ``[B, T, H, S]`` (a gate a channel); fp32, bf16 or fp16, any strides.
        chunk_size: 16, 32, 64 or 128.
        reverse: sum from each token to the end of its chunk instead of from the start.
        scale: multiplies the sums (FLA passes log2(e) for gates in base 2); None: 1.
        cu_seqlens: ``[N + 1]`` int32 or int64, offsets of packed sequences (then B == 1).

    Returns:
        A contiguous fp32 tensor of g's shape; zeros for tokens outside ``cu_seqlens``.

    Raises:
        RuntimeError: every wrong shape, dtype or device, in one message.

    Source: ``chunk_local_cumsum`` of flash-linear-attention.
    """
    return _ops.chunk_local_cumsum(g, chunk_size, reverse, scale, cu_seqlens)


def chunk_scaled_dot_kkt(
    k: torch.Tensor,
    g: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    chunk_size: int = 64,
    gate_base: float | None = None,
) -> torch.Tensor:
    """``A[t, j] = beta_t (k_t . k_j) exp(g_t - g_j)`` for the tokens j < t of each chunk.

    Args:
        k: ``[B, T, H, K]``, bf16 or fp16, K <= 256, unit stride in the last dimension.
        g: ``[B, T, HV]``, the gates' logarithms summed up within each chunk, fp32 or k's dtype, any strides; None: no decay.
        beta: ``[B, T, HV]``, fp32 or k's dtype, any strides; None: ones. HV is a multiple of H, and H without g and beta.
        cu_seqlens: ``[N + 1]`` int32 or int64, offsets of packed sequences (then B == 1).
        chunk_size: C = 16, 32 or 64.
        gate_base: None: natural logarithms; 2: base 2.

    Returns:
        A ``[B, T, HV, C]`` fp32: row t holds the columns of its chunk; zeros on the diagonal, above it, past the sequence's
        end and for tokens outside ``cu_seqlens``.

    Raises:
        RuntimeError: every wrong shape, dtype, device or stride, in one message.

    Source: ``chunk_scaled_dot_kkt_fwd`` of flash-linear-attention.
    """
    return _ops.chunk_scaled_dot_kkt(k, g, beta, cu_seqlens, chunk_size, gate_base)


def chunk_kkt_solve(
    k: torch.Tensor,
    g: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    chunk_size: int = 64,
    gate_base: float | None = None,
) -> torch.Tensor:
    """``(I + A)^-1`` with the A of ``chunk_scaled_dot_kkt``, which is never written, in one kernel.

    Args:
        k: ``[B, T, H, K]``, bf16 or fp16, K <= 256, unit stride in the last dimension.
        g: ``[B, T, HV]``, the gates' logarithms summed up within each chunk, fp32 or k's dtype, any strides; None: no decay.
        beta: ``[B, T, HV]``, fp32 or k's dtype, any strides; None: ones. HV is a multiple of H, and H without g and beta.
        cu_seqlens: ``[N + 1]`` int32 or int64, offsets of packed sequences (then B == 1).
        chunk_size: C = 64.
        gate_base: None: natural logarithms; 2: base 2.

    Returns:
        ``[B, T, HV, C]`` in k's dtype: row t holds the columns of its chunk; zeros above the diagonal, past the sequence's end
        and for tokens outside ``cu_seqlens``. For unit keys and beta <= 1 no entry exceeds 1.

    Raises:
        RuntimeError: every wrong shape, dtype, device or stride, in one message.

    Source: ``chunk_scaled_dot_kkt_fwd`` and ``solve_tril`` of flash-linear-attention.
    """
    return _ops.chunk_kkt_solve(k, g, beta, cu_seqlens, chunk_size, gate_base)


def solve_tril(A: torch.Tensor, cu_seqlens: torch.Tensor | None = None, output_dtype: torch.dtype | None = None) -> torch.Tensor:
    """``(I + A)^-1`` of every chunk, in float32 arithmetic.

    Args:
        A: ``[B, T, H, C]``, bf16, fp16 or fp32, C = 16, 32 or 64: row t holds the C columns of its chunk, strictly lower
            triangular (the diagonal, what is above it and columns past the sequence's end are not read).
        cu_seqlens: ``[N + 1]`` int32 or int64, offsets of packed sequences (then B == 1).
        output_dtype: bf16, fp16 or fp32; None: A's.

    Returns:
        ``[B, T, H, C]`` contiguous; columns past the sequence's end and tokens outside ``cu_seqlens`` are zeros.

    Raises:
        RuntimeError: every wrong shape, dtype, device or stride, in one message.

    Source: ``solve_tril`` of flash-linear-attention.
    """
    return _ops.solve_tril(A, cu_seqlens, output_dtype)
