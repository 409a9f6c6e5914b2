"""w = A (k * beta * exp(g)) and u = A (v * beta) per chunk, with A = (I + strict_lower(beta K K^T decay))^-1.

k [B, T, H, K], v [B, T, HV, V], A [B, T, HV, BT] in k's dtype or fp32 (row t holds the chunk's BT columns), g [B, T, HV]
cumulative within the chunk, beta [B, T, HV]; w [B, T, HV, K], u [B, T, HV, V]. Derivation: docs/math.md, "WY form".

beta * exp(g) scales the columns of A instead of the rows of k: BT x BT products in fp32, one rounding, k as it is. beta stays
on v, where every element rounds on its own: in A it would round the diagonal, which is 1, to one bf16 beta for a whole row
of u (state error against float64 3.4e-3 instead of 3.1e-3 with decays of e^-0.5 a token).

One program makes the rows of one chunk of one value head, in tiles of BN columns.
"""

import triton
import triton.language as tl
from common import find_chunk, load_gate, round_to


@triton.jit
def recompute_w_u_kernel(
    k: "*T:16?",
    v: "*T:16?",
    A: "*fp32:16?",
    g: "*fp32",
    beta: "*fp32",
    cu_seqlens: "*i32",
    w: "*T:16",
    u: "*T:16",
    N: "i64",
    T: "i64",
    H: "i32",
    HV: "i32",
    K: "i32:16?",
    V: "i32:16?",
    k_stride_b: "i64:16?",
    k_stride_t: "i64:16?",
    k_stride_h: "i64:16?",
    v_stride_b: "i64:16?",
    v_stride_t: "i64:16?",
    v_stride_h: "i64:16?",
    A_stride_b: "i64:16?",
    A_stride_t: "i64:16?",
    A_stride_h: "i64:16?",
    g_stride_b: "i64",
    g_stride_t: "i64",
    g_stride_h: "i64",
    beta_stride_b: "i64",
    beta_stride_t: "i64",
    beta_stride_h: "i64",
    cu_stride: "i64",
    cu_words: "i32",
    A_is_fp32: "i32",
    g_kind: "i32",
    beta_kind: "i32",
    g_log2: "fp32",
    BT: tl.constexpr,
    BN: tl.constexpr,
):
    dtype: tl.constexpr = w.dtype.element_ty
    i_h = tl.program_id(0) % HV
    i_n, i_b, bos, eos, i_t = find_chunk(tl.program_id(0) // HV, cu_seqlens, cu_stride, cu_words, N, T, BT)
    if i_t >= eos:
        return
    o_i = tl.arange(0, BT)
    o_t = i_t + o_i  # [BT]
    m_out = o_t < eos
    m_t = m_out & (i_n >= 0) & (i_n < N)  # tokens of no sequence: read as zeros, so w = u = 0

    b_g = load_gate(g, i_b * g_stride_b + o_t * g_stride_t + i_h * g_stride_h, m_t & (g_kind != 0), g_kind == 1, dtype)
    p_beta = i_b * beta_stride_b + o_t * beta_stride_t + i_h * beta_stride_h
    b_beta = load_gate(beta, p_beta, m_t & (beta_kind != 0), beta_kind == 1, dtype)
    b_beta = tl.where(beta_kind == 0, 1.0, b_beta)  # [BT]

    p_A = i_b * A_stride_b + o_t[:, None] * A_stride_t + i_h * A_stride_h + o_i[None, :]
    b_A = load_gate(A, p_A, m_t[:, None] & m_t[None, :], A_is_fp32, dtype)  # [BT, BT]
    b_Aw = round_to(b_A * (b_beta * tl.exp2(b_g * g_log2))[None, :], dtype)
    b_Au = round_to(b_A, dtype)

    i_row = (i_b * T + o_t) * HV + i_h  # [BT]
    v += i_b * v_stride_b + i_h * v_stride_h
    for i_v in range(0, V, BN):
        o_v = i_v + tl.arange(0, BN)
        b_v = tl.load(v + o_t[:, None] * v_stride_t + o_v[None, :], mask=m_t[:, None] & (o_v < V)[None, :], other=0.0)
        b_v = round_to(b_v.to(tl.float32) * b_beta[:, None], dtype)
        b_u = round_to(tl.dot(b_Au, b_v), dtype)  # [BT, BN]
        tl.store(u + i_row[:, None] * V + o_v[None, :], b_u, mask=m_out[:, None] & (o_v < V)[None, :])
    k += i_b * k_stride_b + (i_h // (HV // H)) * k_stride_h
    for i_k in range(0, K, BN):
        o_k = i_k + tl.arange(0, BN)
        b_k = tl.load(k + o_t[:, None] * k_stride_t + o_k[None, :], mask=m_t[:, None] & (o_k < K)[None, :], other=0.0)
        b_w = round_to(tl.dot(b_Aw, b_k), dtype)  # [BT, BN]
        tl.store(w + i_row[:, None] * K + o_k[None, :], b_w, mask=m_out[:, None] & (o_k < K)[None, :])
