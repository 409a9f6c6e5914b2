"""offsets[n] = chunks of C tokens in all sequences before n, n = 0 .. N, as int32 or int64 (offset_words 1 or 2).

One program makes BN offsets. It counts the chunks of all sequences before its own itself, so nothing has to wait.
"""

import triton
import triton.language as tl
from common import load_bound, store_index


@triton.jit
def _chunks(cu_seqlens, o_n, cu_stride, cu_words, N, T, C):
    """Chunks of the sequences o_n; 0 from N on."""
    o_in = tl.minimum(o_n, N - 1)
    start = load_bound(cu_seqlens, o_in, cu_stride, cu_words, T)
    end = load_bound(cu_seqlens, o_in + 1, cu_stride, cu_words, T)
    return tl.where(o_n < N, (tl.maximum(end - start, 0) + C - 1) // C, 0)


@triton.jit
def prepare_chunk_offsets_kernel(
    cu_seqlens: "*i32",
    offsets: "*i32:16",
    N: "i64",
    T: "i64",
    C: "i64",
    cu_stride: "i64",
    cu_words: "i32",
    offset_words: "i32",
    BN: tl.constexpr,
):
    i_n = tl.program_id(0).to(tl.int64) * BN
    o_n = tl.arange(0, BN).to(tl.int64)
    if i_n == 0:
        store_index(offsets, o_n, o_n * 0, o_n == 0, offset_words)
    if N > 0:
        b_before = o_n * 0  # [BN]
        for i in range(0, i_n, BN):
            b_before += _chunks(cu_seqlens, i + o_n, cu_stride, cu_words, N, T, C)
        b_count = tl.cumsum(_chunks(cu_seqlens, i_n + o_n, cu_stride, cu_words, N, T, C), axis=0)
        store_index(offsets, i_n + o_n + 1, tl.sum(b_before) + b_count, i_n + o_n < N, offset_words)
