"""The serial half of the chunk form of the gated delta rule (derivation: docs/math.md), one program per sequence, value head and
tile of BV state columns, chunk after chunk of BT = 64 tokens:

    U = T' (V - d0 * (K S));  O = d1 * (Q S) + P' U;  S <- d3 S + K^T (d2 * U)

with T', P' and the scales d0 .. d3 of chunk_prep.py.

q, k [B, T, H, K], K = BK = 64 or 128, v, o [B, T, HV, V], BV divides V, rows on 16 bytes; states [N, HV, K, V] or [N, HV, V, K].
On a pool (POOL) a sequence's state is read from its slot and stored there; with `also` it is padding too where that slot of
another pool is none. Pools may be fp8 (kind 4) times a scale per head, and bf16 is rounded at random with a seed. With prefix_lens chunks lie on multiples of BT
tokens counted from that many tokens before the call, so that every checkpoint falls on a chunk's end.
"""

import triton
import triton.language as tl
from common import chunk_lead, load_bound, load_index, load_state, round_to
from rounding import fp8_value, round_at_random, to_fp8


@triton.jit
def _load_values(v, d, i_t, bos, eos, stride_vt, o_t, o_v, SHORT_FIRST: tl.constexpr, BT: tl.constexpr):
    """v [BT, BV] and the scales d0, d1, d2 [BT], d3 of the chunk at token i_t; zeros outside the sequence."""
    row = i_t + o_t
    some = (o_t >= 0) & (i_t < eos)
    m_t = row < eos
    if SHORT_FIRST:
        m_t = m_t & (row >= bos)
    b_v = tl.load(v + row[:, None] * stride_vt + o_v[None, :], mask=m_t[:, None], other=0.0)
    b_d0 = tl.load(d + o_t, mask=some, other=0.0)
    b_d1 = tl.load(d + BT + o_t, mask=some, other=0.0)
    b_d2 = tl.load(d + 2 * BT + o_t, mask=some, other=0.0)
    return b_v, b_d0, b_d1, b_d2, tl.load(d + 3 * BT, mask=i_t < eos, other=0.0)


@triton.jit
def _advance(
    b_S, q, k, v, o, t, p, d, begin, end, bos, eos, stride_qt, stride_kt, stride_vt, stride_ot, HV, o_t, o_k, o_v,
    SHORT_FIRST: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """The state [BK, BV] after the chunks at [begin, end), which start with t, p and d; their rows of o are written."""
    # v and d are no operands of a product, so the compiler does not pipeline them: they are fetched a chunk ahead.
    b_v, b_d0, b_d1, b_d2, b_d3 = _load_values(v, d, begin, bos, eos, stride_vt, o_t, o_v, SHORT_FIRST, BT)
    for i_t in range(begin, end, BT):
        row = i_t + o_t
        m_t = row < eos
        if SHORT_FIRST:
            m_t = m_t & (row >= bos)
        b_k = tl.load(k + row[:, None] * stride_kt + o_k[None, :], mask=m_t[:, None], other=0.0)  # [BT, BK]
        b_t = tl.load(t + o_t[:, None] * BT + o_t[None, :])  # [BT, BT]
        b_q = tl.load(q + row[:, None] * stride_qt + o_k[None, :], mask=m_t[:, None], other=0.0)
        b_p = tl.load(p + o_t[:, None] * BT + o_t[None, :])
        t += HV * BT * BT
        p += HV * BT * BT
        d += HV * 4 * BT
        next_v, next_d0, next_d1, next_d2, next_d3 = _load_values(v, d, i_t + BT, bos, eos, stride_vt, o_t, o_v, SHORT_FIRST, BT)

        b_s = b_S.to(b_k.dtype)
        b_x = b_v.to(tl.float32) - b_d0[:, None] * tl.dot(b_k, b_s)
        b_u = tl.dot(b_t, round_to(b_x, b_k.dtype))  # [BT, BV]
        b_o = b_d1[:, None] * tl.dot(b_q, b_s)
        b_o = tl.dot(b_p, round_to(b_u, b_k.dtype), b_o)
        tl.store(o + row[:, None] * stride_ot + o_v[None, :], round_to(b_o, b_k.dtype), mask=m_t[:, None])
        b_S *= b_d3
        b_S = tl.dot(tl.trans(b_k), round_to(b_u * b_d2[:, None], b_k.dtype), b_S)
        b_v, b_d0, b_d1, b_d2, b_d3 = next_v, next_d0, next_d1, next_d2, next_d3
    return b_S


@triton.jit
def _load_tile(p, o, kind, unit, POOL: tl.constexpr):
    """A tile of states as float32; kind 4: fp8 times ``unit``."""
    x = load_state(p, o, kind != 4, kind)
    if POOL:
        if kind == 4:
            x = fp8_value(tl.load(p.to(tl.pointer_type(tl.uint8)) + o)) * unit
    return x


@triton.jit
def _store_tile(p, at, o, x, kind):
    """x (fp32) at ``p`` + at + o: kind 1 fp32, 2 bf16, 3 fp16."""
    if kind == 1:
        tl.store(p + at + o, x)
    elif kind == 2:
        tl.store(p.to(tl.pointer_type(tl.bfloat16)) + at + o, x.to(tl.bfloat16))
    else:
        tl.store(p.to(tl.pointer_type(tl.float16)) + at + o, round_to(x, tl.float16))


@triton.jit
def _store(p, at, b_S, o_k, o_v, V, kind, v_first, BK: tl.constexpr):
    """Stores a tile b_S [BK, BV] of the head's state that starts at element ``at``."""
    if v_first != 0:
        _store_tile(p, at, o_v[:, None] * BK + o_k[None, :], tl.trans(b_S), kind)
    else:
        _store_tile(p, at, o_k[:, None] * V + o_v[None, :], b_S, kind)


@triton.jit
def _store_last(p, at, b_S, o_k, o_v, V, kind, v_first, unit, seed, seed_given, slot, i_h, BK: tl.constexpr):
    """The same on the way to the pool."""
    if kind == 4:
        b_bits = to_fp8(tl.div_rn(b_S, tl.zeros_like(b_S) + unit))
        p_b = p.to(tl.pointer_type(tl.uint8)) + at
        if v_first != 0:
            tl.store(p_b + o_v[:, None] * BK + o_k[None, :], tl.trans(b_bits))
        else:
            tl.store(p_b + o_k[:, None] * V + o_v[None, :], b_bits)
    else:
        if seed_given != 0:
            b_S = round_at_random(b_S, seed, slot, (i_h * BK + o_k[:, None]) * V + o_v[None, :])
        _store(p, at, b_S, o_k, o_v, V, kind, v_first, BK)


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
    slots: "*i32",
    has_state: "*i8",
    prefix: "*i32",
    checkpoints: "*fp32",
    checkpoint_slots: "*i32",
    also: "*i32",
    scales: "*fp32",
    seed: "*i64",
    cu_stride: "i64",
    slots_stride: "i64",
    has_state_stride: "i64",
    prefix_stride: "i64",
    checkpoint_stride: "i64",
    checkpoint_slots_stride_n: "i64",
    checkpoint_slots_stride_m: "i64",
    also_stride: "i64",
    scales_stride: "i64",
    n_slots: "i64",
    n_also: "i64",
    min_slot: "i64",
    n_checkpoints: "i64",
    every: "i64",
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
    stride_hn: "i64",
    cu_words: "i32",
    slots_words: "i32",
    also_words: "i32",
    seed_given: "i32",
    has_state_given: "i32",
    prefix_words: "i32",
    checkpoint_slots_words: "i32",
    checkpoint_columns: "i32",
    checkpoint_kind: "i32",
    H: "i32",
    HV: "i32",
    V: "i32",
    h0_kind: "i32",
    ht_kind: "i32",
    v_first: "i32",
    BK: tl.constexpr,
    BV: tl.constexpr,
    POOL: tl.constexpr,
    BT: tl.constexpr,
):
    SPARE = tl.where(prefix_words != 0, 2, 1)
    NV = (V + BV - 1) // BV
    i_nh = tl.program_id(0) // NV
    i_n = (i_nh // HV).to(tl.int64)
    i_h = i_nh % HV
    i_kh = i_h // (HV // H)
    if cu_words == 0:
        i_b = i_n
        bos = i_n * 0
        eos = bos + T_len
        i_c = i_n * ((T_len + BT - 1) // BT + SPARE - 1)
    else:
        i_b = i_n * 0
        bos = load_bound(cu_seqlens, i_n, cu_stride, cu_words, T_len)
        eos = load_bound(cu_seqlens, i_n + 1, cu_stride, cu_words, T_len)
        i_c = bos // BT + SPARE * (i_n + 1)

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

    i_slot = i_n
    first = bos  # the first chunk's first token
    if POOL:
        if bos >= eos:  # nothing to do: the slot is not touched
            return
        i_slot = load_index(slots, i_n, slots_stride, slots_words)
        live = (i_slot >= min_slot) & (i_slot < n_slots)
        if also_words != 0:
            i_also = load_index(also, i_n, also_stride, also_words)
            live = live & (i_also >= min_slot) & (i_also < n_also)
        if live == 0:  # padding
            for i_t in range(bos, eos, BT):
                row = i_t + o_t
                tl.store(o + row[:, None] * stride_ot + o_v[None, :], tl.zeros([BT, BV], o.dtype.element_ty), mask=(row < eos)[:, None])
            return
        if has_state_given != 0:
            if tl.load(has_state + i_n * has_state_stride) == 0:
                h0_kind = 0
        first -= chunk_lead(i_n, prefix, prefix_stride, prefix_words, BT)
        length = i_n * 0
        if prefix_words != 0:
            length = tl.maximum(load_index(prefix, i_n, prefix_stride, prefix_words), 0)
        checkpoint = bos + T_len + BT  # the token before which the next checkpoint is due: none
        i_m = i_n * 0
        if checkpoint_kind != 0:
            checkpoint = bos + every - length % every

    unit = 1.0
    if POOL:
        if (h0_kind == 4) | (ht_kind == 4):
            unit = tl.load(scales + i_h * scales_stride)
    b_S = tl.zeros([BK, BV], tl.float32)
    if h0_kind != 0:
        at = i_slot * stride_sn + i_h * stride_sh
        if v_first != 0:
            b_S = tl.trans(_load_tile(h0, at + o_v[:, None] * stride_sr + o_k[None, :], h0_kind, unit, POOL))
        else:
            b_S = _load_tile(h0, at + o_k[:, None] * stride_sr + o_v[None, :], h0_kind, unit, POOL)

    if POOL:
        begin = first
        while begin < eos:
            end = tl.minimum(checkpoint, eos)
            n = begin - first  # tokens done
            b_S = _advance(
                b_S, q, k, v, o, t + n * HV * BT, p + n * HV * BT, d + n * HV * 4, begin, end, bos, eos,
                stride_qt, stride_kt, stride_vt, stride_ot, HV, o_t, o_k, o_v, True, BT,
            )  # fmt: skip
            if (end == checkpoint) & (i_m < checkpoint_columns):
                at = i_n * checkpoint_slots_stride_n + i_m * checkpoint_slots_stride_m
                to = load_index(checkpoint_slots + at, 0, 0, checkpoint_slots_words)
                if (to >= min_slot) & (to < n_checkpoints):
                    _store(checkpoints, to * checkpoint_stride + i_h * (BK * V), b_S, o_k, o_v, V, checkpoint_kind, v_first, BK)
            checkpoint += every
            i_m += 1
            begin = end
        if ht_kind != 0:
            at = i_slot * stride_hn + i_h * (BK * V)
            _store_last(ht, at, b_S, o_k, o_v, V, ht_kind, v_first, unit, seed, seed_given, i_slot, i_h, BK)
    else:
        b_S = _advance(
            b_S, q, k, v, o, t, p, d, bos, eos, bos, eos, stride_qt, stride_kt, stride_vt, stride_ot, HV, o_t, o_k, o_v, False, BT
        )  # fmt: skip
        if ht_kind != 0:
            at = ht + (i_n * HV + i_h) * (BK * V)
            if v_first != 0:
                tl.store(at + o_v[:, None] * BK + o_k[None, :], tl.trans(b_S))
            else:
                tl.store(at + o_k[:, None] * V + o_v[None, :], b_S)
