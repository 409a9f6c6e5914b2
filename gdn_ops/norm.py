"""Normalisations and gates: documented forms of ``torch.ops.gdn`` operators."""

import torch

from gdn_ops._library import call
from gdn_ops.spec import SILU

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


def fused_gdn_gating(
    A_log: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    dt_bias: torch.Tensor,
    softplus_beta: float = 1.0,
    softplus_threshold: float = 20.0,
    *,
    out: tuple[torch.Tensor, ...] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decay and write strength of every head: ``g = -exp(A_log) * softplus(a + dt_bias)``, ``beta = sigmoid(b)``.

    Args:
        A_log, dt_bias: ``[HV]``.
        a, b: ``[..., HV]``, or ``[..., H, HV/H]`` (heads in groups, as an interleaved projection holds them), up to 4
            dimensions, any strides (column slices of one projection).
        softplus_beta, softplus_threshold: ``softplus(x) = log(1 + exp(softplus_beta * x)) / softplus_beta``, and x itself
            where ``softplus_beta * x > softplus_threshold``.
        out: the results go there: of their shapes and dtypes, contiguous, on 16 bytes.

    Every input is fp32, or bf16, or fp16; the 16-bit ones all of one dtype.

    Returns:
        ``(g, beta)``, fp32, contiguous, in the shape of ``a``; g is a natural logarithm.

    Raises:
        RuntimeError: wrong rank, size, dtype or device, or an input that requires a gradient.

    Source: ``fused_gdn_gating`` of SGLang and LightLLM.
    """
    return call(_ops.fused_gdn_gating, out, A_log, a, b, dt_bias, softplus_beta, softplus_threshold)


def gated_rmsnorm(
    x: torch.Tensor,
    weight: torch.Tensor,
    z: torch.Tensor | None = None,
    eps: float = 1e-6,
    activation: int = SILU,
    norm_before_gate: bool = True,
    group_size: int = 0,
    hf_rounding: bool = False,
    out_scale: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``rmsnorm(x) * weight * act(z)``, where ``rmsnorm(x) = x * rsqrt(mean(x**2) + eps)`` over the last dimension.

    Args:
        x: ``[..., D]``, up to 4 dimensions (none of the leading ones needs to have an element); bf16, fp16 or fp32; unit
            stride in the last dimension. D of any size; groups of 64, 128 and 256 are fast.
        weight: ``[D]`` in fp32 or x's dtype.
        z: the gate, in shape and dtype of x, other strides welcome; also ``[..., H, r, D]`` for x ``[..., H*r, D]`` (a slice of an
            interleaved projection, not copied). Where x is zero, as in rows of padding, y is, whatever z holds. None: no gate.
        eps: added to the mean of the squares.
        activation: ``gdn_ops.SILU``, ``SIGMOID`` or ``NONE`` (the gate is z itself).
        norm_before_gate: False computes ``rmsnorm(x * act(z)) * weight``.
        group_size: groups of so many columns are normalised separately; 0: all columns together.
        hf_rounding: rounds the normalised x to x's dtype before it is multiplied with the weight, and the product again if
            the weight has x's dtype: the same roundings as RMSNormGated of transformers' Qwen3-Next and Qwen3.5. Otherwise
            everything is fp32 up to the one rounding at the store.
        out_scale: ``[1]`` or a scalar tensor, fp32: the result is divided by it and rounded to fp8 (e4m3fn), saturating at
            +-448; with ``hf_rounding`` it is rounded to x's dtype first.
        out: the result goes there: of its shape and dtype, contiguous, on 16 bytes.

    Returns:
        A contiguous tensor like ``x``, fp8 with ``out_scale``; fp16 saturates at +-65504.

    Raises:
        RuntimeError: wrong rank, size, dtype, device or stride, an unknown activation, a group size that does not divide D,
            or an input that requires a gradient.

    Source: ``RMSNormGated`` of mamba and transformers, ``FusedRMSNormGated`` of flash-linear-attention; with a scale of
    TensorRT-LLM.
    """
    return call(_ops.gated_rmsnorm, out, x, weight, z, eps, activation, norm_before_gate, group_size, hf_rounding, out_scale)


def gated_rmsnorm_fp8(
    x: torch.Tensor,
    weight: torch.Tensor,
    z: torch.Tensor | None = None,
    eps: float = 1e-6,
    activation: int = SILU,
    norm_before_gate: bool = True,
    group_size: int = 0,
    hf_rounding: bool = False,
    quant_group: int = 0,
    *,
    out: tuple[torch.Tensor, ...] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`gated_rmsnorm` with fp8 results and a scale for every group of columns, as block-scaled GEMMs take them.

    Args:
        quant_group: columns that share a scale, a divisor of those that are normalised together; 0: those (V = 128 in models).
        The others: as for :func:`gated_rmsnorm`. ``hf_rounding`` also rounds the result to x's dtype before it is scaled, as
        a separate quantisation kernel would find it.
        out: the results go there: of their shapes and dtypes, contiguous, on 16 bytes.

    Returns:
        ``(y, scales)``: y in the shape of x, fp8 (e4m3fn), scales ``[..., columns / quant_group]`` in fp32, both contiguous; the result is
        ``y * scale``, with ``scale = max(largest absolute value of the group, 1e-10) / 448``.

    Raises:
        RuntimeError: as :func:`gated_rmsnorm`, or a quant_group that does not divide.

    Source: ``per_token_group_quant_fp8`` of SGLang and vLLM after ``RMSNormGated``.
    """
    return call(_ops.gated_rmsnorm_fp8, out, x, weight, z, eps, activation, norm_before_gate, group_size, hf_rounding, quant_group)
