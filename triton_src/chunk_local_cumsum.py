"""y[t] = scale * (sum of g over the tokens of t's chunk up to t, or from t on where reverse), in fp32.

g [B, T, H, S] (S = 1 for scalar gates) of any strides, fp32, bf16 or fp16; y [B, T, H, S] fp32. Tokens of no sequence get
zeros. One program sums up BM of the H * S columns of one chunk.
"""

import triton
import triton.language as tl
from common import find_chunk, load_state


@triton.jit
def chunk_local_cumsum_kernel(
    g: "*fp32",
    y: "*fp32:16",
    cu_seqlens: "*i32",
    N: "i64",
    T: "i64",
    H: "i32",
    S: "i32",
    g_stride_b: "i64",
    g_stride_t: "i64",
    g_stride_h: "i64",
    g_stride_s: "i64",
    cu_stride: "i64",
    cu_words: "i32",
    g_kind: "i32",
    reverse: "i32",
    scale: "fp32",
    BT: tl.constexpr,
    BM: tl.constexpr,
):
    M = H * S
    blocks = (M + BM - 1) // BM
    i_n, i_b, bos, eos, i_t = find_chunk(tl.program_id(0) // blocks, cu_seqlens, cu_stride, cu_words, N, T, BT)
    if i_t >= eos:
        return
    o_i = tl.arange(0, BT)
    o_t = i_t + tl.where(reverse != 0, BT - 1 - o_i, o_i)  # [BT], in the order of the sum
    o_m = tl.program_id(0) % blocks * BM + tl.arange(0, BM)  # [BM]
    mask = (o_t < eos)[:, None] & (o_m < M)[None, :]
    p_m = (o_m // S) * g_stride_h + (o_m % S) * g_stride_s
    p_g = i_b * g_stride_b + o_t[:, None] * g_stride_t + p_m[None, :]
    b_g = load_state(g, p_g, mask & (i_n >= 0) & (i_n < N), g_kind)  # [BT, BM]
    tl.store(y + (i_b * T + o_t)[:, None] * M + o_m[None, :], tl.cumsum(b_g, axis=0) * scale, mask=mask)
