"""The state at the start of every chunk, v_new = u - w h, and the state at the end: the serial part of the chunk algorithm.

    v_new = u - w h;  h <- exp(G_last) h + k^T (exp(G_last - G) * v_new)        per chunk; G = g, cumulative in the chunk

k [B, T, H, K], w [B, T, HV, K], u [B, T, HV, V], g [B, T, HV], h0 [N, HV, K, V]; h [B, NT, HV, K, V] and v_new [B, T, HV, V] in
k's dtype, ht [N, HV, K, V] fp32. With v_first the last two sizes of h0, h and ht are swapped. Varlen: the rows of h are
compact, sequence n starts at row chunk_offset(n), and rows past the last chunk are zero. Derivation: docs/math.md, "Chunks".

One program carries BV columns of the state of one head through one sequence, in fp32 registers. Varlen adds ``fillers``
programs that zero the unused rows of h and the v_new of tokens of no sequence.
"""

import triton
import triton.language as tl
from common import chunk_offset, load_bound, load_gate, load_state, round_to, zero_range


@triton.jit
def store_state(p, b, o_k, o_v, mask, K, V, v_first, ALIGNED: tl.constexpr):
    """A tile [BK, BV] into a [K, V] or, with v_first, a [V, K] matrix. Either order gets wide stores where rows allow them."""
    if not ALIGNED:
        tl.store(p + o_k[:, None] * tl.where(v_first != 0, 1, V) + o_v[None, :] * tl.where(v_first != 0, K, 1), b, mask=mask)
    elif v_first != 0:
        tl.store(p + o_v[None, :] * K + o_k[:, None], b, mask=mask)
    else:
        tl.store(p + o_k[:, None] * V + o_v[None, :], b, mask=mask)


@triton.jit
def chunk_fwd_h_kernel(
    k: "*T:16?",
    w: "*T:16?",
    u: "*T:16?",
    g: "*fp32",
    h0: "*fp32:16?",
    cu_seqlens: "*i32",
    h: "*T:16",
    v_new: "*T:16",
    ht: "*fp32:16",
    N: "i64",
    T: "i64",
    rows: "i64",
    fillers: "i64",
    H: "i32",
    HV: "i32",
    K: "i32:16?",
    V: "i32:16?",
    k_stride_b: "i64:16?",
    k_stride_t: "i64:16?",
    k_stride_h: "i64:16?",
    w_stride_b: "i64:16?",
    w_stride_t: "i64:16?",
    w_stride_h: "i64:16?",
    u_stride_b: "i64:16?",
    u_stride_t: "i64:16?",
    u_stride_h: "i64:16?",
    g_stride_b: "i64",
    g_stride_t: "i64",
    g_stride_h: "i64",
    h0_stride_n: "i64:16?",
    h0_stride_h: "i64:16?",
    h0_stride_row: "i64:16?",
    cu_stride: "i64",
    cu_words: "i32",
    g_kind: "i32",
    h0_kind: "i32",
    v_first: "i32",
    save_new_value: "i32",
    save_final_state: "i32",
    g_log2: "fp32",
    BT: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    dtype: tl.constexpr = h.dtype.element_ty
    NV = tl.cdiv(V, BV)
    i_v = tl.program_id(0) % NV
    i_h = tl.program_id(0) // NV % HV
    i_n = (tl.program_id(0) // NV // HV).to(tl.int64)
    if i_n >= N:
        i_f = tl.program_id(0) - N * HV * NV
        size = HV.to(tl.int64) * K * V
        used = tl.minimum(chunk_offset(N, cu_seqlens, cu_stride, cu_words, T, BT), rows)
        zero_range(h, used * size, rows * size, i_f, fillers, 1024)
        if save_new_value:
            zero_range(v_new, N * 0, load_bound(cu_seqlens, N * 0, cu_stride, cu_words, T) * HV * V, i_f, fillers, 1024)
            zero_range(v_new, load_bound(cu_seqlens, N, cu_stride, cu_words, T) * HV * V, T * HV * V, i_f, fillers, 1024)
        return

    i_b, bos, eos = i_n, i_n * 0, T
    if cu_words != 0:
        i_b = i_n * 0
        bos = load_bound(cu_seqlens, i_n, cu_stride, cu_words, T)
        eos = load_bound(cu_seqlens, i_n + 1, cu_stride, cu_words, T)
    i_row = chunk_offset(i_n, cu_seqlens, cu_stride, cu_words, T, BT)

    o_i = tl.arange(0, BT)
    o_k = tl.arange(0, BK)
    o_v = i_v * BV + tl.arange(0, BV)
    m_k = o_k < K if not ALIGNED else tl.full([BK], 1, tl.int1)
    m_v = o_v < V
    m_kv = m_k[:, None] & m_v[None, :]
    h0_offset = i_n * h0_stride_n + i_h * h0_stride_h
    p_h0 = h0_offset + o_k[:, None] * tl.where(v_first != 0, 1, h0_stride_row) + o_v[None, :] * tl.where(v_first != 0, h0_stride_row, 1)
    b_h = load_state(h0, p_h0, m_kv, h0_kind)  # [BK, BV]

    k += i_b * k_stride_b + bos * k_stride_t + (i_h // (HV // H)) * k_stride_h
    w += i_b * w_stride_b + bos * w_stride_t + i_h * w_stride_h
    u += i_b * u_stride_b + bos * u_stride_t + i_h * u_stride_h
    v_new += ((i_b * T + bos) * HV + i_h) * V
    g_offset = i_b * g_stride_b + bos * g_stride_t + i_h * g_stride_h
    p_k = k + o_i[:, None] * k_stride_t  # [BT, 1]
    p_w = w + o_i[:, None] * w_stride_t
    p_u = u + o_i[:, None] * u_stride_t
    v_stride_t = HV.to(tl.int64) * V
    p_v = v_new + o_i[:, None] * v_stride_t
    length = (eos - bos).to(tl.int32)
    for i_t in range(0, length, BT):
        m_t = o_i < length - i_t
        m_tk = m_t[:, None] & m_k[None, :]
        m_tv = m_t[:, None] & m_v[None, :]
        b_h16 = round_to(b_h, dtype)
        p_h = h + (i_row * HV + i_h) * K * V
        store_state(p_h, b_h16, o_k, o_v, m_kv & (i_row < rows), K, V, v_first, ALIGNED)
        i_row += 1

        b_w = tl.load(p_w + i_t * w_stride_t + o_k[None, :], mask=m_tk, other=0.0)  # [BT, BK]
        b_u = tl.load(p_u + i_t * u_stride_t + o_v[None, :], mask=m_tv, other=0.0)  # [BT, BV]
        b_v = b_u.to(tl.float32) - tl.dot(b_w, b_h16)
        if save_new_value != 0:
            tl.store(p_v + i_t * v_stride_t + o_v[None, :], round_to(b_v, dtype), mask=m_tv)

        b_g = load_gate(g, g_offset + (i_t + o_i) * g_stride_t, m_t & (g_kind != 0), g_kind == 1, dtype)  # [BT]
        last = tl.minimum(i_t + BT, length) - 1
        b_g_last = load_gate(g, g_offset + last * g_stride_t, g_kind != 0, g_kind == 1, dtype)
        b_d = tl.exp2(tl.where(m_t, b_g_last - b_g, 0.0) * g_log2)
        b_k = tl.load(p_k + i_t * k_stride_t + o_k[None, :], mask=m_tk, other=0.0)  # [BT, BK]
        b_h = b_h * tl.exp2(b_g_last * g_log2) + tl.dot(tl.trans(b_k), round_to(b_v * b_d[:, None], dtype))

    if save_final_state != 0:
        store_state(ht + (i_n * HV + i_h) * K * V, b_h, o_k, o_v, m_kv, K, V, v_first, ALIGNED)
