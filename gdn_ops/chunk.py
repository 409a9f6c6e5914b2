"""Prefill: the step ops of the chunk algorithm. Documented forms of ``torch.ops.gdn`` operators."""

import torch

from gdn_ops._library import call

_ops = torch.ops.gdn


def recompute_w_u(
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    A: torch.Tensor,
    g: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    gate_base: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``w = A (k * beta * exp(g))`` and ``u = A (v * beta)`` per chunk: the WY form of the delta rule.

    Args:
        k: ``[B, T, H, K]``, bf16 or fp16, K <= 256.
        v: ``[B, T, HV, V]`` in k's dtype, V <= 256, HV a multiple of H.
        beta: ``[B, T, HV]``, fp32 or k's dtype, any strides.
        A: ``[B, T, HV, C]``, fp32 or k's dtype: row t holds the columns of its chunk of C = 16, 32 or 64 tokens of
            ``(I + strict_lower(beta K K^T decay))^-1`` (see ``solve_tril``).
        g: ``[B, T, HV]``, the gates' logarithms summed up within each chunk; None: no decay.
        cu_seqlens: ``[N + 1]`` int32 or int64, offsets of packed sequences (then B == 1).
        gate_base: None: natural logarithms; 2: base 2.

    Returns:
        w ``[B, T, HV, K]`` and u ``[B, T, HV, V]`` in k's dtype; zeros for tokens outside ``cu_seqlens``.

    Raises:
        RuntimeError: every wrong shape, dtype, device or stride, in one message.

    Source: ``recompute_w_u_fwd`` of flash-linear-attention.
    """
    return _ops.recompute_w_u(k, v, beta, A, g, cu_seqlens, gate_base)


def chunk_fwd_h(
    k: torch.Tensor,
    w: torch.Tensor,
    u: torch.Tensor,
    g: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    chunk_size: int = 64,
    save_new_value: bool = True,
    cu_seqlens: torch.Tensor | None = None,
    state_v_first: bool = False,
    gate_base: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The state at the start of every chunk, ``v_new = u - w h``, and the state at the end of every sequence.

    Args:
        k: ``[B, T, H, K]``, bf16 or fp16, K <= 256.
        w, u: ``[B, T, HV, K]`` and ``[B, T, HV, V]`` of ``recompute_w_u``, in k's dtype, V <= 256.
        g: ``[B, T, HV]``, fp32 or k's dtype, the gates' logarithms summed up within each chunk; None: no decay.
        initial_state: ``[N, HV, K, V]``, fp32, bf16 or fp16; None: zeros.
        output_final_state: whether the last result is wanted.
        chunk_size: 16, 32 or 64 tokens.
        save_new_value: whether ``v_new`` is wanted.
        cu_seqlens: ``[N + 1]`` int32 or int64, offsets of packed sequences (then B == 1); N == B without it.
        state_v_first: states are ``[.., V, K]`` instead of ``[.., K, V]``.
        gate_base: None: natural logarithms; 2: base 2.

    Returns:
        h ``[B, NT, HV, K, V]`` in k's dtype. Dense: NT = ceil(T / chunk_size). Packed: the chunks of all sequences, one
        after another (``prepare_chunk_offsets`` says where each starts), then zeros up to ceil(T / chunk_size) + N rows.
        v_new ``[B, T, HV, V]`` in k's dtype, zeros for tokens outside ``cu_seqlens``; empty when not wanted.
        final_state ``[N, HV, K, V]`` float32; empty when not wanted.

    Raises:
        RuntimeError: every wrong shape, dtype, device or stride, in one message.

    Source: ``chunk_gated_delta_rule_fwd_h`` of flash-linear-attention.
    """
    return _ops.chunk_fwd_h(k, w, u, g, initial_state, output_final_state, chunk_size, save_new_value, cu_seqlens, state_v_first, gate_base)


def chunk_fwd_o(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    h: torch.Tensor,
    g: torch.Tensor | None = None,
    scale: float | None = None,
    cu_seqlens: torch.Tensor | None = None,
    chunk_size: int = 64,
    state_v_first: bool = False,
    gate_base: float | None = None,
) -> torch.Tensor:
    """``scale * (exp(g) * (q h) + tril(q k^T * exp(g_i - g_j)) v)`` per chunk: the read-out of the chunk algorithm.

    Args:
        q, k: ``[B, T, H, K]``, bf16 or fp16, K <= 256.
        v: ``[B, T, HV, V]``, the ``v_new`` of ``chunk_fwd_h``, in q's dtype, V <= 256.
        h: ``[B, NT, HV, K, V]`` of ``chunk_fwd_h``, in q's dtype; packed, any NT that holds the chunks.
        g: ``[B, T, HV]``, fp32 or q's dtype, the gates' logarithms summed up within each chunk; None: no decay.
        scale: None: ``K ** -0.5``.
        cu_seqlens: ``[N + 1]`` int32 or int64, offsets of packed sequences (then B == 1).
        chunk_size: 16, 32 or 64 tokens.
        state_v_first: h is ``[.., V, K]`` instead of ``[.., K, V]``.
        gate_base: None: natural logarithms; 2: base 2.

    Returns:
        ``[B, T, HV, V]`` in q's dtype; zeros for tokens outside ``cu_seqlens``.

    Raises:
        RuntimeError: every wrong shape, dtype, device or stride, in one message.

    Source: ``chunk_fwd_o`` of flash-linear-attention.
    """
    return _ops.chunk_fwd_o(q, k, v, h, g, scale, cu_seqlens, chunk_size, state_v_first, gate_base)


def chunk_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    state_v_first: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gated delta rule over whole sequences, in chunks of 64 tokens: prefill.

    Two launches and one workspace of about ``272 * HV`` bytes a token; nothing is read on the host, so the call can be
    captured in a CUDA graph and replayed with other lengths. Head sizes other than K = 64 or 128 with V a multiple of 64,
    rows of q, k or v that do not start on 16 bytes, and CPU tensors take the token loop: right, but slow on a GPU.

    Args:
        q, k: ``[B, T, H, K]``, bf16 or fp16 (fp32 on the CPU only); unit stride in the last dimension. K <= 256.
        v: ``[B, T, HV, V]`` in q's dtype, ``HV % H == 0``, V <= 256; value head j uses key head ``j // (HV // H)``.
        g: ``[B, T, HV]``, natural logarithm of the decay (not summed), fp32 or q's dtype, any strides. None: no decay.
        beta: ``[B, T, HV]``, fp32 or q's dtype, any strides. None: ones.
        scale: of q; ``K ** -0.5`` by default.
        initial_state: ``[N, HV, K, V]`` (``[N, HV, V, K]`` with ``state_v_first``), fp32, bf16 or fp16. None: zeros.
        output_final_state: whether the final states are returned.
        cu_seqlens: ``[N + 1]``, int32 or int64, offsets of packed sequences (then B == 1).
        use_qk_l2norm_in_kernel: q and k become ``x * rsqrt(sum(x**2) + 1e-6)`` first.
        state_v_first: states are ``[HV, V, K]``.

    Returns:
        o ``[B, T, HV, V]`` in q's dtype, zeros for tokens of no sequence; and the final states in fp32, of shape ``[0]``
        when not asked for. An empty sequence keeps its initial state.

    Raises:
        RuntimeError: wrong rank, size, dtype, device or stride, or an input requires a gradient.

    Source: Gated Delta Networks (arXiv 2412.06464); ``chunk_gated_delta_rule`` of flash-linear-attention; docs/math.md.
    """
    return _ops.chunk_gated_delta_rule(
        q, k, v, g, beta, scale, initial_state, output_final_state, cu_seqlens, use_qk_l2norm_in_kernel, state_v_first
    )


def chunk_gated_delta_rule_update(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor | None,
    beta: torch.Tensor | None,
    ssm_pool: torch.Tensor,
    ssm_indices: torch.Tensor,
    has_initial_state: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    state_v_first: bool = False,
    write_state: bool = True,
    checkpoints: torch.Tensor | None = None,
    checkpoint_every: int = 64,
    checkpoint_indices: torch.Tensor | None = None,
    prefix_lens: torch.Tensor | None = None,
    min_slot: int = 0,
    pool_scale: torch.Tensor | None = None,
    rounding_seed: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``chunk_gated_delta_rule`` on a pool of states, in place: prefill as engines run it.

    A sequence starts from the state in its slot and leaves its last state there, in the pool's dtype. A slot outside
    ``[min_slot, slots)`` is padding: zeros out, no state touched. An empty sequence leaves its slot as it is. Equal, bit for
    bit, to gathering the states, the functional op, and scattering what it returns, without ``prefix_lens``.

    Args:
        q, k, v, g, beta, cu_seqlens, scale, use_qk_l2norm_in_kernel: as in ``chunk_gated_delta_rule``.
        ssm_pool: ``[slots, HV, K, V]`` (``[slots, HV, V, K]`` with ``state_v_first``), fp32, bf16, fp16 or fp8, any slot
            stride. Updated in place.
        ssm_indices: ``[N]``, int32 or int64: the sequences' slots; they may repeat only without ``write_state``.
        has_initial_state: ``[N]`` bool; false: zeros, whatever the slot holds. None: true.
        write_state: whether last states are stored.
        checkpoints: ``[slots2, HV, ..]`` like the pool (or the pool itself): the states on the way, one after every multiple
            of ``checkpoint_every`` tokens, of any pool dtype.
        checkpoint_every: in tokens, a multiple of 64.
        checkpoint_indices: ``[N, M]``: the slot of ``checkpoints`` for the j-th multiple ``p`` with
            ``prefix_lens[n] < p <= prefix_lens[n] + length``; slots below ``min_slot`` (-1) or past ``checkpoints``, and multiples
            after the M-th are skipped.
        prefix_lens: ``[N]``: tokens of each sequence before this call. None: none. Given, chunks are those of the whole
            prompt: a prompt cut anywhere is computed in the same chunks, but for the chunk that is cut.
        pool_scale: ``[HV]`` fp32, of an fp8 pool (e4m3fn): states are its numbers times this. Checkpoints are states.
        rounding_seed: ``[1]`` int64: last states are rounded to a bf16 pool at random, by bits that depend on seed, slot and
            element alone. None: to nearest.
        out: the result goes there: of its shape and dtype, contiguous, on 16 bytes.

    Returns:
        o ``[B, T, HV, V]`` in q's dtype, zeros for tokens of no sequence.

    Raises:
        RuntimeError: every wrong shape, dtype, device or stride, in one message.

    Source: ``chunk_gated_delta_rule`` of flash-linear-attention, SGLang's and vLLM's prefill around it.
    """
    return call(
        _ops.chunk_gated_delta_rule_update, out, q, k, v, g, beta, ssm_pool, ssm_indices, has_initial_state, cu_seqlens, scale,
        use_qk_l2norm_in_kernel, state_v_first, write_state, checkpoints, checkpoint_every, checkpoint_indices, prefix_lens, min_slot,
        pool_scale, rounding_seed,
    )  # fmt: skip
