"""Causal convolutions over time: documented forms of ``torch.ops.gdn`` operators."""

import torch

from gdn_ops.spec import NONE

_ops = torch.ops.gdn


def causal_conv1d_fn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    conv_states: torch.Tensor | None = None,
    query_start_loc: torch.Tensor | None = None,
    cache_indices: torch.Tensor | None = None,
    has_initial_state: torch.Tensor | None = None,
    activation: int = NONE,
    min_slot: int = 0,
    seq_idx: torch.Tensor | None = None,
    channels_first: bool = False,
) -> torch.Tensor:
    """``y_t = act(bias + sum_i weight[:, i] * x_{t-W+1+i})`` for many tokens; histories are read and updated in place.

    Args:
        x: ``[T, D]`` tokens of packed sequences or ``[B, T, D]``; with ``channels_first`` ``[D, T]`` or ``[B, D, T]``. bf16,
            fp16 or fp32, any strides; fast where channels are next to each other in memory (a transposed view of token
            rows included) and rows start on 16 bytes.
        weight: ``[D, W]``, W 2, 3 or 4; bias: ``[D]``. Both in x's dtype or fp32.
        conv_states: ``[slots, D, L]``, L >= W - 1, x's dtype or fp32, any strides: the inputs before each sequence, updated
            in place to the last inputs of (history, x), also where a sequence is shorter than W - 1. None: histories are
            zeros and none is kept. With ``cache_indices`` the history is the first W - 1 columns and others stay
            untouched; without, the last W - 1 columns, and the whole line shifts. Of shape ``[0]``: the same as None.
        query_start_loc: ``[N + 1]`` int32 or int64: sequence n is tokens ``[query_start_loc[n], query_start_loc[n + 1])``.
            Tokens outside give zeros. An empty sequence leaves its slot as it is. None: N = B sequences, one a row.
        cache_indices: ``[N]`` int32 or int64: the slot of each sequence; None: slot n. A slot below ``min_slot`` or past the
            pool marks padding: its tokens give zeros, nothing else is touched.
        has_initial_state: ``[N]`` bool: whether the slot's content counts (otherwise zeros); None: for no sequence.
        activation: ``gdn_ops.NONE`` or ``gdn_ops.SILU``.
        seq_idx: not supported yet.

    Returns:
        y in x's shape and dtype, in new memory: contiguous, except that for ``channels_first`` input that is a transposed
        view of token rows, y is one too. fp16 saturates at +-65504.

    Raises:
        RuntimeError: wrong rank, size, dtype or device, a state with overlapping elements, or an input that requires a
            gradient. Nothing was written then.

    Source: ``causal_conv1d_fn`` of Dao-AILab/causal-conv1d, in the form of SGLang and vLLM.
    """
    if conv_states is None and torch.compiler.is_compiling():
        conv_states = x.new_empty(0)  # the same; Inductor cannot compile a mutating operator that is given nothing to mutate
    return _ops.causal_conv1d_fn(
        x, weight, bias, conv_states, query_start_loc, cache_indices, has_initial_state, activation, min_slot, seq_idx, channels_first
    )


def causal_conv1d_update(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: int = NONE,
    conv_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    query_start_loc: torch.Tensor | None = None,
    intermediate_windows: torch.Tensor | None = None,
    intermediate_indices: torch.Tensor | None = None,
    parents: torch.Tensor | None = None,
    min_slot: int = 0,
    cache_seqlens: torch.Tensor | None = None,
) -> torch.Tensor:
    """The convolution of :func:`causal_conv1d_fn` for the next tokens of every row, on its state.

    Args:
        x: ``[B, D]``, or ``[B, D, T]`` for T tokens a row; bf16, fp16 or fp32, any strides.
        conv_state: ``[slots, D, L]``, L >= W - 1, x's dtype or fp32, any strides, updated in place. With
            ``conv_state_indices`` the history is the first W - 1 columns; without, row b has slot b, the history is the last
            W - 1 columns, and the whole line shifts (transformers keeps W columns).
        weight, bias, activation: as for :func:`causal_conv1d_fn`.
        conv_state_indices: ``[B]`` int32 or int64. A slot below ``min_slot`` or past the pool marks padding: its output is
            zeros, nothing else is touched. Slots of other rows are unique.
        num_accepted_tokens, query_start_loc, intermediate_windows, intermediate_indices, parents, cache_seqlens: not
            supported yet.

    Returns:
        y in x's shape and dtype, in new memory laid out as described there.

    Raises:
        RuntimeError: as :func:`causal_conv1d_fn`.

    Source: ``causal_conv1d_update`` of Dao-AILab/causal-conv1d, in the form of SGLang and vLLM.
    """
    return _ops.causal_conv1d_update(
        x, conv_state, weight, bias, activation, conv_state_indices, num_accepted_tokens, query_start_loc,
        intermediate_windows, intermediate_indices, parents, min_slot, cache_seqlens,
    )  # fmt: skip
