"""Housekeeping of state and convolution pools: documented forms of ``torch.ops.gdn`` operators.

A pool is ``[L, slots, ...]``, one slot for a request in each of L layers (``slot_dim=1``), or the ``[slots, ...]`` of one layer
(``slot_dim=0``); a slot has up to 4 dimensions (states ``[HV, K, V]`` or ``[HV, V, K]``, histories ``[D, W - 1]``). All layers
are one launch. fp32, bf16, fp16 or fp8 (e4m3fn, moved byte by byte), any strides (channel-last, ``[..., :-S]``, one of many
pools in a buffer); fast where slots lie on 16 bytes. Index tensors are int32 or int64 of any stride. A slot below ``min_slot``
or past the pool marks padding: nothing is read or written for its row. Slots that are written are unique in a call.
"""

import torch

_ops = torch.ops.gdn


def copy_slots(
    pool: torch.Tensor,
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    mask: torch.Tensor | None = None,
    min_slot: int = 0,
    slot_dim: int = 1,
) -> None:
    """``pool[:, dst_indices] = pool[:, src_indices]`` in place: slots saved, restored, or forked one to many.

    A slot may be read by many rows. It must not be both read and written in one call, except by a row that copies it onto
    itself, which does nothing: rows move at the same time, so what another row would find there is not defined (two calls
    are ordered). Nothing outside the named slots is touched in any case.

    Args:
        pool: as above, updated in place.
        src_indices: ``[N]``.
        dst_indices: ``[N]``, or ``[N, M]``: row n is copied to M slots.
        mask: ``[N]`` bool: rows that are copied; None: all.

    Raises:
        RuntimeError: wrong rank, size, dtype or device, a pool with overlapping elements or that requires a gradient.

    Source: ``copy_mamba_buffer`` and ``fork_mamba_buffer`` of LightLLM, ``track_mamba_states_if_needed`` of SGLang.
    """
    _ops.copy_slots(pool, src_indices, dst_indices, mask, min_slot, slot_dim)


def zero_slots(pool: torch.Tensor, indices: torch.Tensor, mask: torch.Tensor | None = None, min_slot: int = 0, slot_dim: int = 1) -> None:
    """``pool[:, indices] = 0`` in place. Slots may repeat.

    Args:
        pool: as above, updated in place.
        indices: ``[N]``.
        mask: ``[N]`` bool: rows that are cleared; None: all.

    Raises:
        RuntimeError: wrong rank, size, dtype or device, a pool with overlapping elements or that requires a gradient.

    Source: the clearing of freed slots in LightLLM, SGLang and vLLM.
    """
    _ops.zero_slots(pool, indices, mask, min_slot, slot_dim)


def gather_states(
    pool: torch.Tensor,
    indices: torch.Tensor,
    has_initial_state: torch.Tensor | None = None,
    output_dtype: torch.dtype | None = None,
    min_slot: int = 0,
    slot_dim: int = 1,
) -> torch.Tensor:
    """``pool[:, indices]``, with exact zeros for padded rows and where ``has_initial_state`` is false, whatever the slot holds.

    Args:
        pool: as above. Slots may repeat.
        indices: ``[N]``.
        has_initial_state: ``[N]`` bool; None: true.
        output_dtype: fp32, bf16 or fp16; None: the pool's. An fp8 pool keeps its dtype.

    Returns:
        Contiguous states ``[L, N, ...]`` (``[N, ...]`` for ``slot_dim=0``); a cast to fp16 saturates at +-65504.

    Raises:
        RuntimeError: wrong rank, size, dtype or device, or a pool that requires a gradient.

    Source: the gathering of initial states in vLLM, LightLLM and FastDeploy.
    """
    return _ops.gather_states(pool, indices, has_initial_state, output_dtype, min_slot, slot_dim)


def scatter_states(
    pool: torch.Tensor,
    states: torch.Tensor,
    indices: torch.Tensor,
    mask: torch.Tensor | None = None,
    min_slot: int = 0,
    slot_dim: int = 1,
) -> None:
    """``pool[:, indices] = states`` in place.

    Args:
        pool: as above, updated in place.
        states: ``[L, N, ...]`` (``[N, ...]`` for ``slot_dim=0``), any strides, fp32, bf16 or fp16, cast to the pool's dtype
            (fp16 saturates at +-65504); fp8 to fp8 only. Not in the memory of the pool.
        indices: ``[N]``.
        mask: ``[N]`` bool: rows that are stored; None: all.

    Raises:
        RuntimeError: wrong rank, size, dtype or device, a pool with overlapping elements, or an input that requires a gradient.

    Source: the storing of final states in vLLM and LightLLM, ``copy_mamba_state_rows`` of SGLang.
    """
    _ops.scatter_states(pool, states, indices, mask, min_slot, slot_dim)


def scatter_accepted_states(
    pool: torch.Tensor,
    intermediate_states: torch.Tensor,
    ssm_indices: torch.Tensor,
    num_accepted_tokens: torch.Tensor,
    intermediate_indices: torch.Tensor | None = None,
    min_slot: int = 0,
    slot_dim: int = 1,
) -> None:
    """``pool[:, ssm_indices[n]] = intermediate_states[:, n, num_accepted_tokens[n] - 1]`` in place, after speculative verify.

    Args:
        pool: as above, updated in place: states, or histories with their intermediate windows.
        intermediate_states: ``[L, rows, S', ...]`` (``[rows, S', ...]`` for ``slot_dim=0``): what each of the S' tokens left; any
            strides, also windows that overlap in memory; dtypes as for :func:`scatter_states`. Not in the memory of the pool.
        ssm_indices: ``[N]``.
        num_accepted_tokens: ``[N]`` int32 or int64. A row with a count outside ``1..S'`` is left alone.
        intermediate_indices: ``[N]`` int32 or int64: the row of ``intermediate_states``; None: n. Outside of it: left alone.

    Raises:
        RuntimeError: wrong rank, size, dtype or device, a pool with overlapping elements, or an input that requires a gradient.

    Source: ``fused_mamba_state_scatter_with_mask`` and ``fused_conv_window_scatter_with_mask`` of SGLang, whose
    ``step_indices_raw`` are ``num_accepted_tokens - 1``.
    """
    _ops.scatter_accepted_states(pool, intermediate_states, ssm_indices, num_accepted_tokens, intermediate_indices, min_slot, slot_dim)
