"""o = scale (exp(g) (q h) + tril(q k^T exp(g_i - g_j)) v) per chunk: the read-out of the chunk algorithm.

q, k [B, T, H, K], v [B, T, HV, V] (the v_new of chunk_fwd_h), h [B, NT, HV, K, V] (V, K with v_first) the state at the start of
every chunk, g [B, T, HV] cumulative in the chunk; o [B, T, HV, V]. Derivation: docs/math.md, "Chunks".

One program makes BV columns of the rows of one chunk of one value head, over K in tiles of BK.
"""

import triton
import triton.language as tl
from common import chunk_offset, find_chunk, load_gate, round_to


@triton.jit
def chunk_fwd_o_kernel(
    q: "*T:16?",
    k: "*T:16?",
    v: "*T:16?",
    h: "*T:16?",
    g: "*fp32",
    cu_seqlens: "*i32",
    o: "*T:16",
    N: "i64",
    T: "i64",
    NT: "i64",
    H: "i32",
    HV: "i32",
    K: "i32:16?",
    V: "i32:16?",
    q_stride_b: "i64:16?",
    q_stride_t: "i64:16?",
    q_stride_h: "i64:16?",
    k_stride_b: "i64:16?",
    k_stride_t: "i64:16?",
    k_stride_h: "i64:16?",
    v_stride_b: "i64:16?",
    v_stride_t: "i64:16?",
    v_stride_h: "i64:16?",
    h_stride_b: "i64:16?",
    h_stride_c: "i64:16?",
    h_stride_h: "i64:16?",
    h_stride_row: "i64:16?",
    g_stride_b: "i64",
    g_stride_t: "i64",
    g_stride_h: "i64",
    cu_stride: "i64",
    cu_words: "i32",
    g_kind: "i32",
    v_first: "i32",
    scale: "fp32",
    g_log2: "fp32",
    BT: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    V_FIRST: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    dtype: tl.constexpr = o.dtype.element_ty
    NV = tl.cdiv(V, BV)
    i_v = tl.program_id(0) % NV
    i_h = tl.program_id(0) // NV % HV
    i_n, i_b, bos, eos, i_t = find_chunk(tl.program_id(0) // NV // HV, cu_seqlens, cu_stride, cu_words, N, T, BT)
    if i_t >= eos:
        return
    inside = (i_n >= 0) & (i_n < N)  # tokens of no sequence: everything reads as zeros, so o = 0
    i_row = (i_t - bos) // BT
    if cu_words != 0:
        i_row += chunk_offset(i_n, cu_seqlens, cu_stride, cu_words, T, BT)
    m_row = inside & (i_row < NT)

    o_i = tl.arange(0, BT)
    m_out = i_t + o_i < eos
    m_t = m_out & inside
    o_v = i_v * BV + tl.arange(0, BV)
    m_v = o_v < V
    q += i_b * q_stride_b + i_t * q_stride_t + (i_h // (HV // H)) * q_stride_h
    k += i_b * k_stride_b + i_t * k_stride_t + (i_h // (HV // H)) * k_stride_h
    v += i_b * v_stride_b + i_t * v_stride_t + i_h * v_stride_h
    h += i_b * h_stride_b + i_row * h_stride_c + i_h * h_stride_h
    h_stride_k = tl.where(v_first != 0, 1, h_stride_row)  # where the order of the state is not a key
    h_stride_v = tl.where(v_first != 0, h_stride_row, 1)

    b_o = tl.zeros([BT, BV], tl.float32)
    b_P = tl.zeros([BT, BT], tl.float32)
    for i_k in range(0, K, BK):
        o_k = i_k + tl.arange(0, BK)
        m_k = o_k < K
        if not ALIGNED:
            p_h = h + o_k[:, None] * h_stride_k + o_v[None, :] * h_stride_v
        elif V_FIRST:
            p_h = h + o_k[:, None] + o_v[None, :] * h_stride_row
        else:
            p_h = h + o_k[:, None] * h_stride_row + o_v[None, :]
        b_q = tl.load(q + o_i[:, None] * q_stride_t + o_k[None, :], mask=m_t[:, None] & m_k[None, :], other=0.0)  # [BT, BK]
        b_k = tl.load(k + o_i[:, None] * k_stride_t + o_k[None, :], mask=m_t[:, None] & m_k[None, :], other=0.0)  # [BT, BK]
        b_h = tl.load(p_h, mask=(m_k[:, None] & m_v[None, :]) & m_row, other=0.0)  # [BK, BV]
        b_o = tl.dot(b_q, b_h, b_o)
        b_P = tl.dot(b_q, tl.trans(b_k), b_P)

    b_g = load_gate(g, i_b * g_stride_b + (i_t + o_i) * g_stride_t + i_h * g_stride_h, m_t & (g_kind != 0), g_kind == 1, dtype)
    m_P = (o_i[:, None] >= o_i[None, :]) & m_t[:, None]
    b_d = tl.exp2(tl.where(m_P, b_g[:, None] - b_g[None, :], 0.0) * g_log2)  # [BT, BT]
    b_P = round_to(tl.where(m_P, b_P * b_d * scale, 0.0), dtype)
    b_v = tl.load(v + o_i[:, None] * v_stride_t + o_v[None, :], mask=m_t[:, None] & m_v[None, :], other=0.0)  # [BT, BV]
    b_o = b_o * (tl.exp2(b_g * g_log2) * scale)[:, None]
    b_o = tl.dot(b_P, b_v, b_o)
    o += ((i_b * T + i_t) * HV + i_h) * V
    tl.store(o + o_i[:, None].to(tl.int64) * HV * V + o_v[None, :], round_to(b_o, dtype), mask=m_out[:, None] & m_v[None, :])
