"""The parallel half of the chunk form of the gated delta rule (derivation: docs/math.md), one program per chunk of BT = 64
tokens and group of value heads sharing a key head:

    T'_ij = X_ij beta_j,   X = (I + strict_lower(beta_i rk_i rk_j (k_i.k_j) exp(G_i - G_j)))^-1
    P'_ij = scale rq_i rk_j (q_i.k_j) exp(G_i - G_j), i >= j
    d     = [exp(G) rk, exp(G) rq scale, exp(G_last - G) rk, exp(G_last)]

G is the chunk's cumulative gate; rk, rq are the inverse norms of k and q rows (1 without l2norm), so that neither is
ever normalised in memory nor rounded again. chunk_rec.py is the serial half.

q, k [B, T, H, K], K = BK = 64 or 128, rows on 16 bytes; g, beta [B, T, HV]; o [B, T, HV, V]: zeros for tokens of no sequence.
Workspace: t (T'), p (P') [slots, HV, BT, BT], d [slots, HV, 4, BT] fp32, one slot per chunk (find_chunk in common.py). With
prefix_lens chunks lie on multiples of BT tokens counted from that many tokens before the call: the first may be short.
"""

import triton
import triton.language as tl
from common import chunk_lead, find_chunk, load_gate, round_to
from solve import invert_unit_lower


@triton.jit
def chunk_prep_kernel(
    q: "*T:16",
    k: "*T:16",
    g: "*fp32",
    beta: "*fp32",
    o: "*T:16",
    t: "*T:16",
    p: "*T:16",
    d: "*fp32:16",
    cu_seqlens: "*i32",
    prefix: "*i32",
    cu_stride: "i64",
    prefix_stride: "i64",
    N: "i64",
    T_len: "i64",
    stride_qb: "i64:16",
    stride_qt: "i64:16",
    stride_qh: "i64:16",
    stride_kb: "i64:16",
    stride_kt: "i64:16",
    stride_kh: "i64:16",
    stride_gb: "i64",
    stride_gt: "i64",
    stride_gh: "i64",
    stride_bb: "i64",
    stride_bt: "i64",
    stride_bh: "i64",
    cu_words: "i32",
    prefix_words: "i32",
    H: "i32",
    HV: "i32",
    V: "i32",
    heads: "i32",
    g_kind: "i32",
    beta_kind: "i32",
    l2norm: "i32",
    scale: "fp32",
    BK: tl.constexpr,
    BT: tl.constexpr,
):
    groups = HV // heads
    i_c = (tl.program_id(0) // groups).to(tl.int64)
    i_v = tl.program_id(0) % groups * heads  # first value head of this program
    i_n, i_b, bos, eos, i_t = find_chunk(i_c, cu_seqlens, cu_stride, cu_words, N, T_len, BT, tl.where(prefix_words != 0, 2, 1))
    outside = (i_n < 0) | (i_n >= N)
    if not outside:
        i_t -= chunk_lead(i_n, prefix, prefix_stride, prefix_words, BT)
    if i_t >= eos:
        return
    o_t = tl.arange(0, BT)
    m_t = (i_t + o_t >= bos) & (i_t + o_t < eos)

    if outside:  # tokens of no sequence: zeros
        o_v = tl.arange(0, 256)
        for i_row in range(i_t, tl.minimum(i_t + BT, eos)):
            for i_h in range(i_v, i_v + heads):
                tl.store(o + ((i_b * T_len + i_row) * HV + i_h) * V + o_v, tl.zeros([256], o.dtype.element_ty), mask=o_v < V)
        return

    o_k = tl.arange(0, BK)
    m_k = m_t[:, None] & (o_k >= 0)[None, :]
    i_kh = i_v // (HV // H)
    row = (i_t + o_t).to(tl.int64)
    b_q = tl.load(q + i_b * stride_qb + i_kh * stride_qh + row[:, None] * stride_qt + o_k[None, :], mask=m_k, other=0.0)
    b_k = tl.load(k + i_b * stride_kb + i_kh * stride_kh + row[:, None] * stride_kt + o_k[None, :], mask=m_k, other=0.0)
    b_rq = tl.full([BT], 1.0, tl.float32)
    b_rk = tl.full([BT], 1.0, tl.float32)
    if l2norm != 0:
        b_qf = b_q.to(tl.float32)
        b_kf = b_k.to(tl.float32)
        b_rq = tl.rsqrt(tl.sum(b_qf * b_qf, 1) + 1e-6)
        b_rk = tl.rsqrt(tl.sum(b_kf * b_kf, 1) + 1e-6)
    b_rq *= scale
    lower = (o_t[:, None] >= o_t[None, :]) & m_t[:, None]
    b_qk = tl.where(lower, tl.dot(b_q, tl.trans(b_k)) * b_rq[:, None] * b_rk[None, :], 0.0)  # [BT, BT]
    for i_h in range(i_v, i_v + heads):
        b_g = load_gate(g, i_b * stride_gb + i_h * stride_gh + row * stride_gt, m_t & (g_kind != 0), g_kind == 1, q.dtype.element_ty)
        b_G = tl.cumsum(b_g, 0)  # [BT]
        b_last = tl.sum(b_g, 0)
        b_decay = tl.exp(tl.where(lower, b_G[:, None] - b_G[None, :], 0.0))  # [BT, BT]
        tl.store(p + ((i_c * HV + i_h) * BT + o_t[:, None]) * BT + o_t[None, :], round_to(b_qk * b_decay, p.dtype.element_ty))
        b_eG = tl.where(m_t, tl.exp(b_G), 0.0)
        at = d + (i_c * HV + i_h) * 4 * BT + o_t
        tl.store(at, b_eG * b_rk)
        tl.store(at + BT, b_eG * b_rq)
        tl.store(at + 2 * BT, tl.where(m_t, tl.exp(tl.where(m_t, b_last - b_G, 0.0)) * b_rk, 0.0))
        tl.store(at + 3 * BT, tl.exp(b_last + 0.0 * b_G))

    b_kk = tl.where(o_t[:, None] > o_t[None, :], tl.dot(b_k, tl.trans(b_k)) * b_rk[:, None] * b_rk[None, :], 0.0)  # [BT, BT]
    for i_h in range(i_v, i_v + heads):
        b_beta = load_gate(
            beta, i_b * stride_bb + i_h * stride_bh + row * stride_bt, m_t & (beta_kind != 0), beta_kind == 1, q.dtype.element_ty
        )
        b_beta = tl.where(m_t & (beta_kind == 0), 1.0, b_beta)
        b_g = load_gate(g, i_b * stride_gb + i_h * stride_gh + row * stride_gt, m_t & (g_kind != 0), g_kind == 1, q.dtype.element_ty)
        b_G = tl.cumsum(b_g, 0)
        b_A = b_kk * b_beta[:, None] * tl.exp(tl.where(lower, b_G[:, None] - b_G[None, :], 0.0))
        b_T = invert_unit_lower(b_A, BT, "fp16") * b_beta[None, :]
        tl.store(t + ((i_c * HV + i_h) * BT + o_t[:, None]) * BT + o_t[None, :], round_to(b_T, t.dtype.element_ty))
