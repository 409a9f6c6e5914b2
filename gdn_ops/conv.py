"""Causal convolutions over time: documented forms of ``torch.ops.gdn`` operators."""

import torch

from gdn_ops._library import call
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
    checkpoints: torch.Tensor | None = None,
    checkpoint_every: int = 0,
    checkpoint_indices: torch.Tensor | None = None,
    prefix_lens: torch.Tensor | None = None,
    H: int = 0,
    K: int = 0,
    *,
    out: torch.Tensor | None = None,
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
            untouched; without, the last W - 1 columns, and the whole line shifts. Of shape ``[0]``: the same as None, which
            the operator itself needs under Inductor where it is given nothing to mutate (this function sees to it).
        query_start_loc: ``[N + 1]`` int32 or int64: sequence n is tokens ``[query_start_loc[n], query_start_loc[n + 1])``.
            Tokens outside give zeros. An empty sequence leaves its slot as it is. None: N = B sequences, one a row.
        cache_indices: ``[N]`` int32 or int64: the slot of each sequence; None: slot n. A slot below ``min_slot`` or past the
            pool marks padding: its tokens give zeros, nothing else is touched.
        has_initial_state: ``[N]`` bool: whether the slot's content counts (otherwise zeros); None: for no sequence.
        activation: ``gdn_ops.NONE`` or ``gdn_ops.SILU``.
        seq_idx: ``[B, T]`` int32 or int64 (``[1, T]`` for x of two dimensions), without states: the sample of each token
            where rows pack several. Taps do not cross a change; tokens of a negative sample give zeros.
        checkpoints: ``[slots, D, W - 1]``, x's dtype or fp32, any strides; may be the pool of ``conv_states``. The last W - 1
            inputs at every multiple p of ``checkpoint_every`` absolute tokens, ``prefix_lens[n] < p <= prefix_lens[n] + length``,
            go to slot ``checkpoint_indices[n, j]`` for the j-th of them; slots below ``min_slot`` or past the pool (-1) and
            multiples beyond M are skipped. These slots are unique, and not those of ``cache_indices``.
        checkpoint_indices: ``[N, M]``, prefix_lens: ``[N]`` (None: 0), the tokens before this call; int32 or int64.
        H, K: with H > 0, x's channels are columns of Qwen3-Next's interleaved projection: H groups ``[q K | k K | v | z]``, v and
            z as wide as the ``D / H - 2 K`` channels of v that a group has. y, weight and states keep the order ``[q | k | v]``.
        out: y goes there: its shape and dtype, any strides, memory apart from x's (several threads read an input).

    Returns:
        y in x's shape (with D channels) and dtype, in new memory: contiguous, except that for ``channels_first`` input that is
        a transposed view of token rows, y is one too.
        fp16 saturates at +-65504.

    Raises:
        RuntimeError: wrong rank, size, dtype or device, a state with overlapping elements, or an input that requires a
            gradient. Nothing was written then.

    Source: ``causal_conv1d_fn`` of Dao-AILab/causal-conv1d, in the form of SGLang and vLLM.
    """
    if conv_states is None and torch.compiler.is_compiling():
        conv_states = x.new_empty(0)  # the same; Inductor cannot compile a mutating operator that is given nothing to mutate
    return call(
        _ops.causal_conv1d_fn, out, x, weight, bias, conv_states, query_start_loc, cache_indices, has_initial_state, activation,
        min_slot, seq_idx, channels_first, checkpoints, checkpoint_every, checkpoint_indices, prefix_lens, H, K,
    )  # fmt: skip


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
    H: int = 0,
    K: int = 0,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The convolution of :func:`causal_conv1d_fn` for the next tokens of every row, on its state.

    Args:
        x: ``[B, D]``, or ``[B, D, T]`` for T tokens a row, or ``[T, D]`` packed rows with ``query_start_loc``; bf16, fp16 or
            fp32, any strides.
        conv_state: ``[slots, D, L]``, L >= W - 1, x's dtype or fp32, any strides, updated in place. With
            ``conv_state_indices`` the history is the first W - 1 columns; without, row b has slot b, the history is the last
            W - 1 columns, and the whole line shifts (transformers keeps W columns).
        weight, bias, activation: as for :func:`causal_conv1d_fn`.
        conv_state_indices: ``[N]`` int32 or int64. A slot below ``min_slot`` or past the pool marks padding: its output is
            zeros, nothing else is touched. Slots of other rows are unique.
        num_accepted_tokens: ``[N]``, each 1 to S + 1 with S = L - (W - 1), for rows of 1 to S + 1 tokens, of which a later step
            knows how many were accepted: the history is columns ``accepted - 1`` to ``accepted + W - 3``, and afterwards the
            line is the last W - 2 inputs of that history and then the row's inputs. What is further right stays.
        query_start_loc: ``[N + 1]``: row n is tokens ``[query_start_loc[n], query_start_loc[n + 1])``. Empty rows leave their
            slot as it is; tokens outside give zeros.
        intermediate_windows: ``[slots2, S', D, W - 1]``, x's dtype or fp32: the last W - 1 inputs after token t of row n go to
            ``[intermediate_indices[n], t]``, and conv_state is left as it is: whoever verifies drafts copies the window of the
            last accepted token there. Overlapping windows (the strides of tokens and columns equal) are fine for chains.
        intermediate_indices: ``[N]``; None: row n. One outside the windows skips that row's, not its output.
        parents: ``[N, S']``, with ``intermediate_windows``: the token before each of a draft tree; -1 and any number that is no
            earlier token: none (so column 0 may hold anything). Taps are the token's ancestors and then the history.
        min_slot: slots below it are padding.
        cache_seqlens: ``[N]`` tokens before this call: lines are rings, token t of a row goes to column
            ``(cache_seqlens[n] + t) mod L`` and its history are the columns before.
        H, K: as for :func:`causal_conv1d_fn`.
        out: y goes there: its shape and dtype, any strides; x itself (not with ``parents``), or memory apart from x's.

    A row whose accepted count or position is out of range, or with more tokens than its line, windows or parents have
    room for, behaves as padding. Index tensors are int32 or int64, of any stride.

    Returns:
        y in x's shape and dtype, as described there, or ``out``.

    Raises:
        RuntimeError: as :func:`causal_conv1d_fn`.

    Source: ``causal_conv1d_update`` of Dao-AILab/causal-conv1d, in the form of SGLang and vLLM.
    """
    return call(
        _ops.causal_conv1d_update, out, x, conv_state, weight, bias, activation, conv_state_indices, num_accepted_tokens,
        query_start_loc, intermediate_windows, intermediate_indices, parents, min_slot, cache_seqlens, H, K,
    )  # fmt: skip


def conv_pack_gdn_decode_inputs(
    mixed_qkv: torch.Tensor,
    z: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    conv_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    cache_indices: torch.Tensor,
    activation: int,
    H: int,
    K: int,
    HV: int,
    V: int,
    min_slot: int = 0,
    *,
    out: tuple[torch.Tensor, ...] | None = None,
) -> tuple[torch.Tensor, ...]:
    """One decode token a row: the step of :func:`causal_conv1d_update`, its channels handed out as q, k and v, and z, a and b
    beside them made contiguous, in one launch.

    Args:
        mixed_qkv: ``[B, D]`` rows ``[q | k | v]``, D = 2 H K + HV V; bf16, fp16 or fp32, any strides.
        z: ``[B, HV, V]`` or ``[B, HV V]``, a, b: ``[B, HV]``; mixed_qkv's dtype or fp32, any strides.
        conv_states: ``[slots, D, L]``, L >= W - 1, mixed_qkv's dtype or fp32, any strides: the first W - 1 columns are the
            history, updated in place.
        weight: ``[D, W]``, W 2, 3 or 4; bias: ``[D]``. Both in mixed_qkv's dtype or fp32.
        cache_indices: ``[B]`` int32 or int64. A slot below ``min_slot`` or past the pool marks padding: that row of every output
            is zeros, nothing else is touched.
        activation: ``gdn_ops.NONE`` or ``gdn_ops.SILU``.
        H, K, HV, V: key heads and their size, value heads and theirs.
        out: the results go there: of their shapes and dtypes, contiguous, on 16 bytes.

    Returns:
        q, k ``[B, 1, H, K]``, v ``[B, 1, HV, V]``, z ``[B, HV, V]``, a, b ``[B, HV]``, contiguous; each in its input's dtype.

    Raises:
        RuntimeError: as :func:`causal_conv1d_fn`.

    Source: ``conv_pack_gdn_decode_inputs`` of LightLLM.
    """
    return call(
        _ops.conv_pack_gdn_decode_inputs, out, mixed_qkv, z, a, b, conv_states, weight, bias, cache_indices, activation, H, K, HV, V,
        min_slot,
    )  # fmt: skip
