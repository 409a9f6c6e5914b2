"""Decode and verify on frozen states and rings: documented forms of ``torch.ops.gdn`` operators.

The pool keeps, for every slot, a frozen state ``h0``, which no step writes; what came after it are the ring's entries
``k_j, u_j, g_j``, one a token. The state they stand for is ``h <- exp(g_j) h + k_j u_j^T`` over the entries, from ``h0`` on. A
step reads ``h0`` once, however many tokens it has, and adds entries; only a row whose ring has no room left is *due*: its
entries are folded into ``h0`` first. Rejected drafts are entries that are not counted.

``ring_lengths [slots]`` says how many entries of each slot count. All layers of a model share it: the step of each layer reads
it, and :func:`advance_rings` changes it once after the last. A slot whose state was written by other ops has length 0.
"""

import torch

from gdn_ops._library import call

_ops = torch.ops.gdn


def fused_recurrent_gated_delta_rule_ring(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor | None,
    beta: torch.Tensor | None,
    A_log: torch.Tensor | None,
    a: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    b: torch.Tensor | None,
    ssm_pool: torch.Tensor,
    ring_k: torch.Tensor,
    ring_u: torch.Tensor,
    ring_g: torch.Tensor,
    ring_lengths: torch.Tensor,
    ssm_indices: torch.Tensor,
    cu_seqlens: torch.Tensor | None = None,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    state_v_first: bool = False,
    min_slot: int = 0,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``fused_recurrent_gated_delta_rule_update`` on frozen states and rings: decode with T = 1, verify with more tokens.

    A row of T tokens and m entries with ``m + T > R`` is due: its entries are folded into the frozen state, which is stored, rounded
    once, and the tokens become entries 0 to T - 1. Otherwise they become entries m to m + T - 1 and the pool is not written. The
    lengths are left to :func:`advance_rings`.

    Args:
        q, k, v, g, beta, A_log, a, dt_bias, b, cu_seqlens, scale, use_qk_l2norm_in_kernel: see
            ``fused_recurrent_gated_delta_rule_update``.
        ssm_pool: ``[slots, HV, K, V]`` (``[slots, HV, V, K]`` with ``state_v_first``), fp32, bf16 or fp16: frozen states. Any slot
            stride, the rest contiguous. Changed in place.
        ring_k: ``[slots, R, H, K]`` fp32, R at most 64: keys as the rule uses them. ring_u: ``[slots, R, HV, V]`` fp32:
            ``u = beta (v - h^T k)``. ring_g: ``[slots, R, HV]`` fp32: the logarithm of the token's own decay. Any slot stride, the rest
            contiguous. Changed in place; entries that do not count may hold anything.
        ring_lengths: ``[slots]`` int32 or int64: entries that count.
        ssm_indices: ``[N]``: slots. A slot below ``min_slot`` or past the pool marks padding, as do more than R tokens and a length
            outside ``0..R``: the output is zeros, nothing is read or written. Slots of live rows must differ.
        min_slot: smallest slot that is not padding.
        out: o goes there: of its shape and dtype, ``[HV, V]`` contiguous, any stride between tokens.

    Returns:
        o ``[B, T, HV, V]`` in q's dtype, zeros for padded rows and tokens of no sequence.

    Raises:
        RuntimeError: wrong rank, size, dtype, device or stride, an incomplete or mixed set of gates, a pool or ring that would have to
            be copied, or an input requires a gradient.

    Source: the WY form of the delta rule (arXiv 2406.06484), applied to the last tokens only.
    """
    return call(
        _ops.fused_recurrent_gated_delta_rule_ring, out, q, k, v, g, beta, A_log, a, dt_bias, b, ssm_pool, ring_k, ring_u, ring_g,
        ring_lengths, ssm_indices, cu_seqlens, scale, use_qk_l2norm_in_kernel, state_v_first, min_slot,
    )  # fmt: skip


def advance_rings(
    ring_lengths: torch.Tensor,
    ssm_indices: torch.Tensor,
    ring_size: int,
    tokens: int | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    min_slot: int = 0,
) -> None:
    """Counts the entries of a step, once all layers have made it; ``ring_lengths`` is changed in place.

    A row of T tokens and m entries has ``(0 if m + T > ring_size else m) + accepted`` entries now.

    Args:
        ring_lengths: ``[slots]`` int32 or int64, any stride.
        ssm_indices, cu_seqlens, min_slot: as in the step.
        ring_size: R of the rings, 1 to 64.
        tokens: T of the step's q ``[B, T, H, K]``. None: one token a row; with ``cu_seqlens``, no bound on its entries.
        num_accepted_tokens: ``[N]`` int32 or int64: how many of a row's tokens stay, 0 to T. None: all.

    A row that was padding in the step, or has a count outside ``0..T``, keeps its length.

    Raises:
        RuntimeError: wrong rank, size, dtype or device.

    Source: takes the place of ``scatter_accepted_states`` in the flows of SGLang and vLLM.
    """
    _ops.advance_rings(ring_lengths, ssm_indices, ring_size, tokens, num_accepted_tokens, cu_seqlens, min_slot)


def commit_accepted(
    ssm_pool: torch.Tensor,
    ring_k: torch.Tensor,
    ring_u: torch.Tensor,
    ring_g: torch.Tensor,
    num_entries: torch.Tensor,
    ssm_indices: torch.Tensor,
    state_v_first: bool = False,
    min_slot: int = 0,
) -> None:
    """Folds the first entries of rings into their frozen states, before a state is copied, forked or used by other ops.

    The caller sets the slot's length to 0 then.

    Args:
        ssm_pool, ring_k, ring_u, ring_g: see :func:`fused_recurrent_gated_delta_rule_ring`. The pool is changed in place.
        num_entries: ``[N]`` int32 or int64: entries of each row that are folded. A row with 0, or a number outside ``0..R``, is
            left alone.
        ssm_indices: ``[N]``: slots; below ``min_slot`` or past the pool: left alone. They must differ.
        state_v_first, min_slot: see :func:`fused_recurrent_gated_delta_rule_ring`.

    Raises:
        RuntimeError: wrong rank, size, dtype, device or stride, or an input requires a gradient.

    Source: as :func:`advance_rings`.
    """
    _ops.commit_accepted(ssm_pool, ring_k, ring_u, ring_g, num_entries, ssm_indices, state_v_first, min_slot)
