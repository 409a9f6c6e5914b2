"""A Gated DeltaNet layer between its input and output projections, as one op."""

import torch

from gdn_ops._library import call

_ops = torch.ops.gdn


def gdn_prefill(
    mixed_qkvz: torch.Tensor,
    ba: torch.Tensor | None,
    conv_states: torch.Tensor,
    ssm_pool: torch.Tensor,
    cache_indices: torch.Tensor,
    has_initial_state: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
    conv_weight: torch.Tensor,
    conv_bias: torch.Tensor | None,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float = 1e-6,
    scale: float | None = None,
    activation: int = 1,
    use_qk_l2norm_in_kernel: bool = True,
    state_v_first: bool = False,
    interleaved: bool = False,
    norm_activation: int = 1,
    norm_before_gate: bool = True,
    hf_rounding: bool = False,
    out_scale: torch.Tensor | None = None,
    ssm_indices: torch.Tensor | None = None,
    ssm_checkpoints: torch.Tensor | None = None,
    conv_checkpoints: torch.Tensor | None = None,
    checkpoint_every: int = 64,
    checkpoint_indices: torch.Tensor | None = None,
    prefix_lens: torch.Tensor | None = None,
    min_slot: int = 0,
    write_state: bool = True,
    pool_scale: torch.Tensor | None = None,
    rounding_seed: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Prefill of a whole layer: convolution, gates, chunk rule, gated norm; both pools are updated in place. Five launches.

    The same as ``causal_conv1d_fn``, ``fused_gdn_gating``, ``chunk_gated_delta_rule_update`` and ``gated_rmsnorm`` one after
    another on views of the projection rows, which are not copied in either order.

    Args:
        mixed_qkvz: ``[T, columns]``, bf16 or fp16 (fp32 on the CPU only), unit stride in the last dimension. Flat:
            ``[q H*K | k H*K | v HV*V | z HV*V]``, with ``[b HV | a HV]`` after them if ``ba`` is None. ``interleaved`` (Qwen3-Next):
            ``[q K | k K | v r*V | z r*V]`` for every key head, ``r = HV // H``.
        ba: ``[T, 2 * HV]`` in mixed_qkvz's dtype: ``[b | a]``, or ``[b r | a r]`` for every key head.
        conv_states: ``[slots, D, >= W - 1]``, ``D = 2*H*K + HV*V`` channels ``[q | k | v]``, any strides, mixed_qkvz's dtype or fp32.
        ssm_pool: ``[slots, HV, K, V]`` (``[.., V, K]`` with ``state_v_first``), fp32, bf16, fp16 or fp8, any slot stride.
        cache_indices: ``[N]`` int32 or int64, slots of conv_states, and of ssm_pool unless ``ssm_indices`` says. Outside
            ``[min_slot, slots)`` of either pool: padding, in both.
        has_initial_state: ``[N]`` bool; false: history and state are zeros, whatever the slots hold.
        cu_seqlens: ``[N + 1]``; None: all rows are one sequence.
        conv_weight: ``[D, W]``, W 2, 3 or 4; conv_bias ``[D]`` or None: mixed_qkvz's dtype or fp32.
        A_log, dt_bias: ``[HV]``; norm_weight ``[V]``: mixed_qkvz's dtype or fp32.
        eps, norm_activation, norm_before_gate, hf_rounding, out_scale: as in ``gated_rmsnorm``.
        activation: of the convolution, ``gdn_ops.SILU`` or ``gdn_ops.NONE``.
        ssm_checkpoints, conv_checkpoints: states and input windows ``[slots2, D, W - 1]`` kept on the way; see
            ``chunk_gated_delta_rule_update`` for ``checkpoint_every``, ``checkpoint_indices``, ``prefix_lens``.
        out: the result goes there: of its shape and dtype, contiguous, on 16 bytes.
        write_state: false leaves both pools as they are; then slots may repeat.
        pool_scale, rounding_seed: as in ``chunk_gated_delta_rule_update``.

    Returns:
        ``[T, HV, V]`` in mixed_qkvz's dtype, or float8_e4m3fn with ``out_scale``: the input of the output projection.

    Raises:
        RuntimeError: every wrong shape, dtype, device or stride, in one message.

    Source: the layer of Gated Delta Networks (arXiv 2412.06464) as Qwen3-Next and Qwen3.5 have it.
    """
    return call(
        _ops.gdn_prefill, out, mixed_qkvz, ba, conv_states, ssm_pool, cache_indices, has_initial_state, cu_seqlens, conv_weight,
        conv_bias, A_log, dt_bias, norm_weight, eps, scale, activation, use_qk_l2norm_in_kernel, state_v_first, interleaved, norm_activation, norm_before_gate,
        hf_rounding, out_scale, ssm_indices, ssm_checkpoints, conv_checkpoints, checkpoint_every, checkpoint_indices, prefix_lens,
        min_slot, write_state, pool_scale, rounding_seed,
    )  # fmt: skip


def gdn_decode(
    mixed_qkvz: torch.Tensor,
    ba: torch.Tensor | None,
    conv_states: torch.Tensor,
    ssm_pool: torch.Tensor,
    cache_indices: torch.Tensor,
    conv_weight: torch.Tensor,
    conv_bias: torch.Tensor | None,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float = 1e-6,
    scale: float | None = None,
    activation: int = 1,
    use_qk_l2norm_in_kernel: bool = True,
    state_v_first: bool = False,
    interleaved: bool = False,
    norm_activation: int = 1,
    norm_before_gate: bool = True,
    hf_rounding: bool = False,
    out_scale: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    ssm_indices: torch.Tensor | None = None,
    ssm_write_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    intermediate_states: torch.Tensor | None = None,
    intermediate_windows: torch.Tensor | None = None,
    intermediate_indices: torch.Tensor | None = None,
    parents: torch.Tensor | None = None,
    update_state: bool = True,
    min_slot: int = 0,
    pool_scale: torch.Tensor | None = None,
    rounding_seed: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """One decode or verify step of a whole layer; both pools are updated in place. One launch for a
    plain step of one 16-bit token a row with K = V = 128 and a pool that is neither fp8 nor rounded at random; otherwise three.

    The same as ``causal_conv1d_update``, ``fused_recurrent_gated_delta_rule_update`` with raw gates and ``gated_rmsnorm`` one
    after another on views of the projection rows, which are not copied in either order.

    Args:
        mixed_qkvz: ``[B, columns]``: one token a row; ``[B, T, columns]``: T tokens a row, evenly apart; or with ``cu_seqlens``
            ``[T, columns]``: packed rows of 1..S+1 tokens, empty ones included. Columns as in ``gdn_prefill``; bf16, fp16, fp32.
        ba, conv_weight, conv_bias, A_log, dt_bias, norm_weight, out_scale and the flags: as in ``gdn_prefill``.
        conv_states, ssm_pool, cache_indices: as in ``gdn_prefill``; with ``num_accepted_tokens`` the convolution's states have
            ``W - 1 + S`` columns.
        ssm_indices: ``[N]``, or ``[N, S + 1]``: start from column accepted - 1, store after token t to column t (or to
            ``ssm_write_indices``). None: cache_indices. A row that is padding in one of the pools is in both.
        num_accepted_tokens: ``[N]``, of the step before; outside ``1..S+1`` a row is padding.
        intermediate_states ``[slots2, tokens, HV, ..]``, intermediate_windows ``[slots2, tokens, D, W - 1]``, intermediate_indices
            ``[N]``: state and input window after every token; the convolution's states then stay as they are.
        parents: ``[N, tokens]``: a draft tree, token t continues from token ``parents[n, t]``, -1 from the row's state.
        update_state: false leaves ssm_pool as it is (then with intermediate states).
        out: the result goes there: of its shape and dtype, contiguous, on 16 bytes.
        pool_scale, rounding_seed: as in ``fused_recurrent_gated_delta_rule_update``.

    Returns:
        ``[B, HV, V]``, ``[B, T, HV, V]`` or ``[T, HV, V]``, as the rows, in mixed_qkvz's dtype, or float8_e4m3fn with
        ``out_scale``.

    Raises:
        RuntimeError: every wrong shape, dtype, device or stride, in one message.

    Source: the layer of Gated Delta Networks (arXiv 2412.06464) as Qwen3-Next and Qwen3.5 have it.
    """
    return call(
        _ops.gdn_decode, out, mixed_qkvz, ba, conv_states, ssm_pool, cache_indices, conv_weight, conv_bias, A_log, dt_bias,
        norm_weight, eps, scale, activation, use_qk_l2norm_in_kernel, state_v_first, interleaved, norm_activation, norm_before_gate, hf_rounding, out_scale,
        cu_seqlens, ssm_indices, ssm_write_indices, num_accepted_tokens, intermediate_states, intermediate_windows,
        intermediate_indices, parents, update_state, min_slot, pool_scale, rounding_seed,
    )  # fmt: skip
