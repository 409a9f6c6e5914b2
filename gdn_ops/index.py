"""Offsets of packed sequences and their chunks, made on the device: nothing is read on the host.

``cu_seqlens`` is ``[N + 1]``, int32 or int64, any stride. Negative entries count as 0, an end before its start is an empty
sequence. Results have its dtype.
"""

import torch

_ops = torch.ops.gdn


def prepare_lens(cu_seqlens: torch.Tensor) -> torch.Tensor:
    """How many tokens each sequence has.

    Args:
        cu_seqlens: ``[N + 1]`` int32 or int64, any stride.

    Returns:
        ``[N]``, in cu_seqlens' dtype.

    Raises:
        RuntimeError: wrong shape or dtype.

    Source: ``prepare_lens`` of flash-linear-attention.
    """
    return _ops.prepare_lens(cu_seqlens)


def prepare_chunk_offsets(cu_seqlens: torch.Tensor, chunk_size: int) -> torch.Tensor:
    """How many chunks the sequences before each one have, and all together.

    Args:
        cu_seqlens: ``[N + 1]`` int32 or int64, any stride.
        chunk_size: tokens a chunk has at most.

    Returns:
        ``[N + 1]``, in cu_seqlens' dtype.

    Raises:
        RuntimeError: wrong shape or dtype, or a chunk size below 1.

    Source: ``prepare_chunk_offsets`` of flash-linear-attention.
    """
    return _ops.prepare_chunk_offsets(cu_seqlens, chunk_size)


def prepare_chunk_indices(cu_seqlens: torch.Tensor, chunk_size: int, total_tokens: int) -> torch.Tensor:
    """Sequence and chunk in it of every chunk, in order; empty sequences have none.

    Args:
        cu_seqlens: ``[N + 1]`` int32 or int64, any stride; entries past ``total_tokens`` count as it.
        chunk_size: tokens a chunk has at most.
        total_tokens: T of the packed tensors.

    Returns:
        ``[ceil(total_tokens / chunk_size) + N, 2]``, in cu_seqlens' dtype: the most rows there can be, unused ones -1.

    Raises:
        RuntimeError: wrong shape or dtype, a chunk size below 1 or a negative number of tokens.

    Source: ``prepare_chunk_indices`` of flash-linear-attention, whose row count is read on the host.
    """
    return _ops.prepare_chunk_indices(cu_seqlens, chunk_size, total_tokens)
