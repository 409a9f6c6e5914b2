"""The chunk form of the gated delta rule in two kernels (derivation: docs/math.md).

prep, one program per chunk of BT = 64 tokens and group of value heads sharing a key head, all chunks in parallel:
    T'_ij = T0_ij exp(G_i - G_j) beta_j           T0 = (I + strict_lower(beta_i rk_i rk_j k_i.k_j))^-1
    P'_ij = scale rq_i rk_j (q_i.k_j) exp(G_i - G_j), i >= j
    d     = [exp(G) rk, exp(G) rq scale, exp(G_last - G) rk, exp(G_last)]
rec, one program per sequence, value head and tile of BV state columns, chunk after chunk:
    U = T' (V - d0 * (K S));  O = d1 * (Q S) + P' U;  S <- d3 S + K^T (d2 * U)
G is the chunk's cumulative gate; rk, rq are the inverse norms of k and q rows (1 without l2norm), so that neither is
ever normalised in memory nor rounded again.

K is BK, 64 or 128, rows of q, k and v start on 16 bytes, BV divides V; other calls take the token loop.
q, k [B, T, H, K], v, o [B, T, HV, V], g, beta [B, T, HV], states [N, HV, K, V] or [N, HV, V, K].
Workspace: t, p [slots, HV, BT, BT], d [slots, HV, 4, BT] fp32, one slot per chunk (find_chunk in common.py).
"""

import triton
import triton.language as tl
from common import find_chunk, load_bound, load_gate, load_state, round_to
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
    cu_stride: "i64",
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
    i_n, i_b, bos, eos, i_t = find_chunk(i_c, cu_seqlens, cu_stride, cu_words, N, T_len, BT)
    if i_t >= eos:
        return
    o_t = tl.arange(0, BT)
    m_t = i_t + o_t < eos

    if (i_n < 0) | (i_n >= N):  # tokens of no sequence: zeros
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
        b_T = invert_unit_lower(b_kk * b_beta[:, None], BT, "fp16") * b_beta[None, :]
        b_g = load_gate(g, i_b * stride_gb + i_h * stride_gh + row * stride_gt, m_t & (g_kind != 0), g_kind == 1, q.dtype.element_ty)
        b_G = tl.cumsum(b_g, 0)
        b_T = tl.where(lower, b_T * tl.exp(tl.where(lower, b_G[:, None] - b_G[None, :], 0.0)), 0.0)
        tl.store(t + ((i_c * HV + i_h) * BT + o_t[:, None]) * BT + o_t[None, :], round_to(b_T, t.dtype.element_ty))


@triton.jit
def _load_values(v, d, i_t, eos, stride_vt, o_t, o_v, BT: tl.constexpr):
    """v [BT, BV] and the scales d0, d1, d2 [BT], d3 of the chunk at token i_t; zeros past the sequence's end."""
    row = i_t + o_t
    some = (o_t >= 0) & (i_t < eos)
    b_v = tl.load(v + row[:, None] * stride_vt + o_v[None, :], mask=(row < eos)[:, None], other=0.0)
    b_d0 = tl.load(d + o_t, mask=some, other=0.0)
    b_d1 = tl.load(d + BT + o_t, mask=some, other=0.0)
    b_d2 = tl.load(d + 2 * BT + o_t, mask=some, other=0.0)
    return b_v, b_d0, b_d1, b_d2, tl.load(d + 3 * BT, mask=i_t < eos, other=0.0)


@triton.jit
def chunk_rec_kernel(
    q: "*T:16",
    k: "*T:16",
    v: "*T:16",
    t: "*T:16",
    p: "*T:16",
    d: "*fp32:16",
    h0: "*fp32",
    ht: "*fp32",
    o: "*T:16",
    cu_seqlens: "*i32",
    cu_stride: "i64",
    T_len: "i64",
    stride_qb: "i64:16",
    stride_qt: "i64:16",
    stride_qh: "i64:16",
    stride_kb: "i64:16",
    stride_kt: "i64:16",
    stride_kh: "i64:16",
    stride_vb: "i64:16",
    stride_vt: "i64:16",
    stride_vh: "i64:16",
    stride_ob: "i64:16",
    stride_ot: "i64:16",
    stride_oh: "i64:16",
    stride_sn: "i64",
    stride_sh: "i64",
    stride_sr: "i64",
    cu_words: "i32",
    H: "i32",
    HV: "i32",
    V: "i32",
    h0_kind: "i32",
    has_ht: "i32",
    v_first: "i32",
    BK: tl.constexpr,
    BV: tl.constexpr,
    BT: tl.constexpr,
):
    NV = (V + BV - 1) // BV
    i_nh = tl.program_id(0) // NV
    i_n = (i_nh // HV).to(tl.int64)
    i_h = i_nh % HV
    i_kh = i_h // (HV // H)
    if cu_words == 0:
        i_b = i_n
        bos = i_n * 0
        eos = bos + T_len
        i_c = i_n * ((T_len + BT - 1) // BT)
    else:
        i_b = i_n * 0
        bos = load_bound(cu_seqlens, i_n, cu_stride, cu_words, T_len)
        eos = load_bound(cu_seqlens, i_n + 1, cu_stride, cu_words, T_len)
        i_c = bos // BT + i_n + 1

    o_t = tl.arange(0, BT)
    o_k = tl.arange(0, BK)
    o_v = tl.program_id(0) % NV * BV + tl.arange(0, BV)
    q += i_b * stride_qb + i_kh * stride_qh
    k += i_b * stride_kb + i_kh * stride_kh
    v += i_b * stride_vb + i_h * stride_vh
    o += i_b * stride_ob + i_h * stride_oh
    t += (i_c * HV + i_h) * BT * BT
    p += (i_c * HV + i_h) * BT * BT
    d += (i_c * HV + i_h) * 4 * BT

    b_S = tl.zeros([BK, BV], tl.float32)
    if h0_kind != 0:
        at = i_n * stride_sn + i_h * stride_sh
        if v_first != 0:
            b_S = tl.trans(load_state(h0, at + o_v[:, None] * stride_sr + o_k[None, :], h0_kind != 0, h0_kind))
        else:
            b_S = load_state(h0, at + o_k[:, None] * stride_sr + o_v[None, :], h0_kind != 0, h0_kind)

    # v and d are no operands of a product, so the compiler does not pipeline them: they are fetched a chunk ahead.
    b_v, b_d0, b_d1, b_d2, b_d3 = _load_values(v, d, bos, eos, stride_vt, o_t, o_v, BT)
    for i_t in range(bos, eos, BT):
        row = i_t + o_t
        m_t = row < eos
        b_k = tl.load(k + row[:, None] * stride_kt + o_k[None, :], mask=m_t[:, None], other=0.0)  # [BT, BK]
        b_t = tl.load(t + o_t[:, None] * BT + o_t[None, :])  # [BT, BT]
        b_q = tl.load(q + row[:, None] * stride_qt + o_k[None, :], mask=m_t[:, None], other=0.0)
        b_p = tl.load(p + o_t[:, None] * BT + o_t[None, :])
        t += HV * BT * BT
        p += HV * BT * BT
        d += HV * 4 * BT
        next_v, next_d0, next_d1, next_d2, next_d3 = _load_values(v, d, i_t + BT, eos, stride_vt, o_t, o_v, BT)

        b_s = b_S.to(b_k.dtype)
        b_x = b_v.to(tl.float32) - b_d0[:, None] * tl.dot(b_k, b_s)
        b_u = tl.dot(b_t, round_to(b_x, b_k.dtype))  # [BT, BV]
        b_o = b_d1[:, None] * tl.dot(b_q, b_s)
        b_o = tl.dot(b_p, round_to(b_u, b_k.dtype), b_o)
        tl.store(o + row[:, None] * stride_ot + o_v[None, :], round_to(b_o, b_k.dtype), mask=m_t[:, None])
        b_S *= b_d3
        b_S = tl.dot(tl.trans(b_k), round_to(b_u * b_d2[:, None], b_k.dtype), b_S)
        b_v, b_d0, b_d1, b_d2, b_d3 = next_v, next_d0, next_d1, next_d2, next_d3

    if has_ht != 0:
        at = ht + (i_n * HV + i_h) * (BK * V)
        if v_first != 0:
            tl.store(at + o_v[:, None] * BK + o_k[None, :], tl.trans(b_S))
        else:
            tl.store(at + o_k[:, None] * V + o_v[None, :], b_S)
