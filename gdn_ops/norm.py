"""Normalisations and gates: documented forms of ``torch.ops.gdn`` operators."""

import torch

_ops = torch.ops.gdn


def l2norm(x: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """``x * rsqrt(sum(x**2) + eps)`` over the last dimension, summed in float32.

    Args:
        x: ``[..., D]``, up to 4 dimensions, D <= 2048; bf16, fp16 or fp32; unit stride in the last dimension.
        eps: added to the sum of squares, so a zero row stays zero.

    Returns:
        A contiguous tensor like ``x``.

    Raises:
        RuntimeError: wrong rank, size, dtype, device or stride, or ``x`` requires a gradient.

    Source: ``l2norm`` of flash-linear-attention.
    """
    return _ops.l2norm(x, eps)
