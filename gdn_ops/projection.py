"""From a layer's projections to the rule's inputs: documented forms of ``torch.ops.gdn`` operators."""

import torch

_ops = torch.ops.gdn


def split_qkvzba(
    mixed: torch.Tensor, ba: torch.Tensor | None, H: int, HV: int, K: int, V: int, interleaved: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cuts rows of a layer's input projections into the convolution's channels, gate z, and b, a; exact copies in one launch.

    Flat rows are ``[q | k | v | z]`` and ``[b | a]``. Interleaved ones (Qwen3-Next) hold them key head by key head: for each of
    the H heads ``[q K | k K | v r*V | z r*V]`` and ``[b r | a r]``, where r = HV / H.

    Args:
        mixed: ``[T, 2*H*K + 2*HV*V]``, or, without ``ba``, ``[T, 2*H*K + 2*HV*V + 2*HV]`` with the columns of ``ba`` at its end
            (LightLLM's single row ``[q | k | v | z | b | a]``). bf16, fp16 or fp32; any token stride and start, unit stride in
            the last dimension; fast where rows start on 16 bytes.
        ba: ``[T, 2*HV]`` in mixed's dtype or fp32, likewise; None: part of ``mixed``.
        H, HV: key and value heads; K, V: their sizes, up to 256.
        interleaved: the order of both projections.

    Returns:
        ``(qkv, z, b, a)``, contiguous: ``[T, 2*H*K + HV*V]`` (all q, all k, all v), ``[T, HV, V]``, and ``[T, HV]`` twice in the
        dtype of ``ba``.

    Raises:
        RuntimeError: wrong rank, size, dtype, device or stride, or an input that requires a gradient.

    Source: ``fused_qkvzba_split_reshape_cat`` (interleaved) and its ``_contiguous`` form (flat) of SGLang and vLLM.
    """
    return _ops.split_qkvzba(mixed, ba, H, HV, K, V, interleaved)
