"""Ai = (I + A)^-1 for every chunk of C = 16, 32 or 64 tokens, in fp32, one rounding at the store.

A [B, T, H, C]: row t holds its chunk's C columns, strictly lower (the rest is not read); Ai the same, contiguous. fp32,
bf16 or fp16, each its own. Tokens of no sequence get zeros.

One program inverts the 64 rows of 64 / C chunks of one head as one block diagonal tile.
"""

import triton
import triton.language as tl
from common import find_chunk, load_state, store_state
from solve import invert_unit_lower


@triton.jit
def solve_tril_kernel(
    A: "*fp32",
    Ai: "*fp32",
    cu_seqlens: "*i32",
    N: "i64",
    T: "i64",
    H: "i32",
    C: "i32",
    A_stride_b: "i64",
    A_stride_t: "i64",
    A_stride_h: "i64",
    cu_stride: "i64",
    cu_words: "i32",
    A_kind: "i32",
    Ai_kind: "i32",
    BT: tl.constexpr,
):
    i_h = tl.program_id(0) % H
    i_n, i_b, bos, eos, i_t = find_chunk(tl.program_id(0) // H, cu_seqlens, cu_stride, cu_words, N, T, BT)
    if i_t >= eos:
        return
    o_i = tl.arange(0, BT)
    o_t = i_t + o_i  # [BT]
    m_t = o_t < eos
    in_sequence = (i_n >= 0) & (i_n < N)
    m_chunk = m_t[:, None] & ((o_i[:, None] ^ o_i[None, :]) < C)  # [BT, BT]: in the same chunk (C = 2^n)

    p_A = i_b * A_stride_b + o_t[:, None] * A_stride_t + i_h * A_stride_h + (o_i & (C - 1))[None, :]
    b_A = load_state(A, p_A, m_chunk & (o_i[:, None] > o_i[None, :]) & in_sequence, A_kind)
    b_Ai = tl.where(in_sequence, invert_unit_lower(b_A, BT, "ieee"), 0.0)  # [BT, BT]
    p_Ai = ((i_b * T + o_t) * H + i_h)[:, None] * C + (o_i & (C - 1))[None, :]
    store_state(Ai, p_Ai, b_Ai, m_chunk, Ai_kind)
