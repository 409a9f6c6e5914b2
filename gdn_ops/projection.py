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


def fused_post_conv_prep(
    qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    H: int,
    K: int,
    V: int,
    use_qk_l2norm: bool = True,
    output_g_exp: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The rule's inputs from what the prefill convolution left: split, q and k normalised, gates; one launch.

    ``q, k = x * rsqrt(sum(x**2) + 1e-6)`` per head (q is not scaled), ``g = -exp(A_log) * softplus(a + dt_bias)`` (softplus
    threshold 20), ``beta = sigmoid(b)``.

    Args:
        qkv: ``[T, 2*H*K + HV*V]``, rows of all q, all k, all v; bf16, fp16 or fp32; any token stride and start, unit stride in
            the last dimension. Fast where rows start on 16 bytes and K is a power of two.
        a, b: ``[T, HV]``, or ``[T, H, HV/H]`` (slices of an interleaved projection), any strides.
        A_log, dt_bias: ``[HV]``, any stride. Gates are fp32 or of qkv's dtype.
        H: key heads; K, V: head sizes up to 256.
        use_qk_l2norm: False copies q and k as they are.
        output_g_exp: returns ``exp(g)`` instead of g (gates of FlashInfer).

    Returns:
        ``(q, k, v, g, beta)``, contiguous: ``[T, H, K]`` twice and ``[T, HV, V]`` in qkv's dtype, ``[T, HV]`` twice in fp32.

    Raises:
        RuntimeError: wrong rank, size, dtype, device or stride, or an input that requires a gradient.

    Source: ``fused_post_conv_prep`` of vLLM, ``fused_gdn_post_conv`` of TensorRT-LLM.
    """
    return _ops.fused_post_conv_prep(qkv, a, b, A_log, dt_bias, H, K, V, use_qk_l2norm, output_g_exp)
