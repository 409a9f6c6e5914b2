"""The gated delta rule token by token: documented forms of ``torch.ops.gdn`` operators."""

import torch

from gdn_ops._library import call

_ops = torch.ops.gdn


def fused_recurrent_gated_delta_rule(
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
    """The gated delta rule, one token after another, in float32.

    ``h <- exp(g_t) h;  u = beta_t (v_t - h^T k_t);  h <- h + k_t u^T;  o_t = scale h^T q_t``

    Args:
        q, k: ``[B, T, H, K]``, bf16, fp16 or fp32; unit stride in the last dimension, any other strides. K <= 256.
        v: ``[B, T, HV, V]`` in q's dtype, ``HV % H == 0``, V <= 256; value head j uses key head ``j // (HV // H)``.
        g: ``[B, T, HV]``, natural logarithm of the decay, fp32 or q's dtype, any strides. None: no decay.
        beta: ``[B, T, HV]``, fp32 or q's dtype, any strides. None: ones.
        scale: of q; ``K ** -0.5`` by default.
        initial_state: ``[N, HV, K, V]`` (``[N, HV, V, K]`` with ``state_v_first``), fp32, bf16 or fp16. None: zeros.
        output_final_state: whether the final states are returned.
        cu_seqlens: ``[N + 1]``, int32 or int64: sequence n is tokens ``[cu_seqlens[n], cu_seqlens[n + 1])`` of the only
            batch row. None: each of the ``N = B`` rows is a sequence.
        use_qk_l2norm_in_kernel: q and k become ``x * rsqrt(sum(x**2) + 1e-6)`` first.
        state_v_first: states are ``[HV, V, K]``.

    Returns:
        o ``[B, T, HV, V]`` in q's dtype, zeros for tokens of no sequence; and the final states in fp32, in the layout of
        ``initial_state``, of shape ``[0]`` when not asked for. An empty sequence keeps its initial state.

    Raises:
        RuntimeError: wrong rank, size, dtype, device or stride, or an input requires a gradient.

    Source: Gated Delta Networks (arXiv 2412.06464); ``fused_recurrent_gated_delta_rule`` of flash-linear-attention.
    """
    return _ops.fused_recurrent_gated_delta_rule(
        q, k, v, g, beta, scale, initial_state, output_final_state, cu_seqlens, use_qk_l2norm_in_kernel, state_v_first
    )


def fused_recurrent_gated_delta_rule_update(
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
    ssm_indices: torch.Tensor,
    ssm_write_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    intermediate_states: torch.Tensor | None = None,
    intermediate_indices: torch.Tensor | None = None,
    parents: torch.Tensor | None = None,
    has_initial_state: torch.Tensor | None = None,
    update_state: bool = True,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    state_v_first: bool = False,
    min_slot: int = 0,
    pool_scale: torch.Tensor | None = None,
    rounding_seed: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Decode and speculative verify: the gated delta rule on a pool of states, which is updated in place.

    Gates are given, or raw: ``g = -exp(A_log) * softplus(a + dt_bias)`` (threshold 20) and ``beta = sigmoid(b)``, in
    float32 and never rounded. Tokens as in ``fused_recurrent_gated_delta_rule``: N rows of T tokens, or packed.

    Args:
        q, k, v, scale, cu_seqlens, use_qk_l2norm_in_kernel: see ``fused_recurrent_gated_delta_rule``.
        g, beta: ``[B, T, HV]``, fp32 or q's dtype; ``beta=None`` is ones. None both with raw gates.
        A_log, dt_bias: ``[HV]``; a, b: ``[B, T, HV]``; fp32 or q's dtype. All four or none. g, beta, a and b may also be
            ``[B, T, H, HV // H]``, any strides: views of a projection whose columns are grouped by key head.
        ssm_pool: ``[slots, HV, K, V]`` (``[slots, HV, V, K]`` with ``state_v_first``), fp32, bf16, fp16 or fp8 (e4m3fn). Any
            slot stride, the rest contiguous: a pool is never copied. Changed in place.
        ssm_indices: ``[N]`` or ``[N, S + 1]``, int32 or int64, any strides: each sequence's slot, or one slot a token: the sequence
            starts from column ``num_accepted_tokens - 1`` and the state after token t goes to column t. A slot to start from below
            ``min_slot`` or past the pool marks padding: its output is zeros and no state is read or written. Slots of live rows
            must differ.
        ssm_write_indices: where states go instead. ``[N]``: the final one; ``[N, S + 1]``: the one after every token. A slot below
            ``min_slot`` or past the pool skips that store alone.
        num_accepted_tokens: ``[N]``, with 2-D ``ssm_indices``: how many tokens of the last call were accepted. Outside 1..S + 1 the
            row is padding. None: all start from column 0.
        intermediate_states: ``[slots2, S', HV, K, V]`` (or ``V, K``), fp32, bf16 or fp16, slots as in ``ssm_pool``: the state after
            token t is also stored at ``[intermediate_indices[n], t]``. Changed in place.
        intermediate_indices: ``[N]``; a slot outside ``[0, slots2)`` skips the store. None: row n has slot n.
        parents: ``[N, S']``, at most 64 columns: token t of a draft tree continues from the state after token ``parents[n, t]``, an
            earlier one, or, where that is -1 or any other number, from the row's start state (so column 0 may hold anything).
            Ancestors are worked through again in float32, never read back from ``intermediate_states``. The final state is
            the one after the last token.
        has_initial_state: ``[N]`` bool; False starts from zeros, whatever the slot holds. None: all True.
        update_state: False leaves the pool as it is.
        min_slot: smallest slot that is not padding.
        pool_scale: ``[HV]`` fp32, any stride, with fp8 pools and only then: a state is its numbers times its head's scale, and is
            stored to nearest, ties to even, saturated at +-448.
        rounding_seed: ``[1]`` int64, on the device: states go to a bf16 pool rounded at random to one of the two numbers next to
            them, without bias. The same seed, slot and element give the same bits, in any batch; another seed for every call
            is the caller's to set. None: to nearest.
        out: o goes there: of its shape and dtype, ``[HV, V]`` contiguous, any stride between tokens.

    No row has more tokens than a 2-D argument has columns; with ``cu_seqlens`` such a row is padding.

    Returns:
        o ``[B, T, HV, V]`` in q's dtype, zeros for padded rows and tokens of no sequence. The slot of an empty sequence keeps its
        bits.

    Raises:
        RuntimeError: wrong rank, size, dtype, device or stride, an incomplete or mixed set of gates, a pool that would have to be
            copied, arguments that need another one, fewer columns than tokens, or an input requires a gradient.

    Source: ``fused_sigmoid_gating_delta_rule_update`` of SGLang (intermediate states, trees) and vLLM (2-D slots),
    ``fused_recurrent_gated_delta_rule`` and ``mtp_fused_recurrent_gated_delta_rule`` of LightLLM (2-D slots, read and written).
    """
    return call(
        _ops.fused_recurrent_gated_delta_rule_update, out, q, k, v, g, beta, A_log, a, dt_bias, b, ssm_pool, ssm_indices,
        ssm_write_indices, num_accepted_tokens, cu_seqlens, intermediate_states, intermediate_indices, parents, has_initial_state, update_state, scale, use_qk_l2norm_in_kernel,
        state_v_first, min_slot, pool_scale, rounding_seed,
    )  # fmt: skip


def fused_recurrent_gated_delta_rule_packed_decode(
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    scale: float | None,
    ssm_pool: torch.Tensor,
    out: torch.Tensor,
    ssm_indices: torch.Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    state_v_first: bool = False,
    min_slot: int = 0,
    pool_scale: torch.Tensor | None = None,
    rounding_seed: torch.Tensor | None = None,
) -> None:
    """Decode of one token a row from packed rows ``[q | k | v]``; ``out`` and the pool are changed in place.

    ``fused_recurrent_gated_delta_rule_update`` with T = 1 and raw gates. HV is A_log's size, K and V the pool's, and H follows
    from the ``D = 2 * H * K + HV * V`` columns.

    Args:
        mixed_qkv: ``[B, D]``, bf16, fp16 or fp32; unit stride in the last dimension, any row stride.
        a, b: ``[B, HV]`` or, grouped by key head, ``[B, H, HV // H]``; A_log, dt_bias: ``[HV]``; fp32 or mixed_qkv's dtype, any
            strides.
        scale: of q; None: ``K ** -0.5``.
        ssm_pool: ``[slots, HV, K, V]`` (``[slots, HV, V, K]`` with ``state_v_first``), fp32, bf16, fp16 or fp8, any slot stride.
        out: ``[B, 1, HV, V]`` or ``[B, HV, V]`` in mixed_qkv's dtype, any row stride. Zeros for padded rows.
        ssm_indices: ``[B]``, int32 or int64; a slot below ``min_slot`` or past the pool marks padding.
        use_qk_l2norm_in_kernel, state_v_first, min_slot, pool_scale, rounding_seed: see ``fused_recurrent_gated_delta_rule_update``.

    Raises:
        RuntimeError: wrong rank, size, dtype, device or stride, or an input requires a gradient.

    Source: ``fused_recurrent_gated_delta_rule_packed_decode`` of SGLang and vLLM.
    """
    _ops.fused_recurrent_gated_delta_rule_packed_decode(
        mixed_qkv, a, b, A_log, dt_bias, scale, ssm_pool, out, ssm_indices, use_qk_l2norm_in_kernel, state_v_first, min_slot,
        pool_scale, rounding_seed,
    )  # fmt: skip
