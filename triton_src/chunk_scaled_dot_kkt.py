"""A[t, j] = beta_t (k_t . k_j) exp(g_t - g_j) for the tokens j < t of a chunk; zeros in the other columns.

k [B, T, H, K], g [B, T, HV] cumulative within the chunk, beta [B, T, HV]; A [B, T, HV, C] fp32, C = 16, 32 or 64, column =
position in the chunk. Tokens of no sequence get zeros. Derivation: docs/math.md, "WY form".

One program makes 64 rows, 64 / C chunks, of one value head. ALIGNED also means C = 64.
"""

import triton
import triton.language as tl
from common import find_chunk, load_gate
from solve import scaled_kkt


@triton.jit
def chunk_scaled_dot_kkt_kernel(
    k: "*T:16?",
    g: "*fp32",
    beta: "*fp32",
    cu_seqlens: "*i32",
    A: "*fp32:16",
    N: "i64",
    T: "i64",
    H: "i32",
    HV: "i32",
    K: "i32:16?",
    C: "i32",
    k_stride_b: "i64:16?",
    k_stride_t: "i64:16?",
    k_stride_h: "i64:16?",
    g_stride_b: "i64",
    g_stride_t: "i64",
    g_stride_h: "i64",
    beta_stride_b: "i64",
    beta_stride_t: "i64",
    beta_stride_h: "i64",
    cu_stride: "i64",
    cu_words: "i32",
    g_kind: "i32",
    beta_kind: "i32",
    g_log2: "fp32",
    BT: tl.constexpr,
    BK: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    dtype: tl.constexpr = k.dtype.element_ty
    i_h = tl.program_id(0) % HV
    i_n, i_b, bos, eos, i_t = find_chunk(tl.program_id(0) // HV, cu_seqlens, cu_stride, cu_words, N, T, BT)
    if i_t >= eos:
        return
    o_i = tl.arange(0, BT)
    o_t = i_t + o_i  # [BT]
    m_out = o_t < eos
    m_t = m_out & (i_n >= 0) & (i_n < N)  # tokens of no sequence: read as zeros
    m_chunk = m_out[:, None] & ((o_i[:, None] ^ o_i[None, :]) < C)  # [BT, BT]: t and j in the same chunk (C = 2^n)
    if ALIGNED:
        m_chunk = m_out[:, None] & (o_i[None, :] < BT)

    b_g = load_gate(g, i_b * g_stride_b + o_t * g_stride_t + i_h * g_stride_h, m_t & (g_kind != 0), g_kind == 1, dtype)
    p_beta = i_b * beta_stride_b + o_t * beta_stride_t + i_h * beta_stride_h
    b_beta = load_gate(beta, p_beta, m_t & (beta_kind != 0), beta_kind == 1, dtype)
    b_beta = tl.where(beta_kind == 0, 1.0, b_beta)  # [BT]

    k += i_b * k_stride_b + (i_h // (HV // H)) * k_stride_h
    m_A = m_chunk & (o_i[:, None] > o_i[None, :])
    b_A = scaled_kkt(k, k_stride_t, K, o_t, m_t, m_A, b_g, b_beta, g_log2, BT, BK)
    i_row = (i_b * T + o_t) * HV + i_h  # [BT]
    if ALIGNED:
        tl.store(A + i_row[:, None] * BT + o_i[None, :], b_A, mask=m_chunk)
    else:
        tl.store(A + i_row[:, None] * C + (o_i & (C - 1))[None, :], b_A, mask=m_chunk)
