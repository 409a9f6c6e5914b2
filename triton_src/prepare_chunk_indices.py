"""indices[r] = (sequence, chunk) of the r-th chunk of all, (-1, -1) past the last, as int32 or int64 (index_words 1 or 2).

offsets [N + 1] int64: chunks before each sequence (prepare_chunk_offsets). One program makes BR rows: the sequence of a row
is the last that starts at or before it, which skips empty ones.
"""

import triton
import triton.language as tl
from common import store_index


@triton.jit
def prepare_chunk_indices_kernel(
    offsets: "*i64:16",
    indices: "*i32:16",
    N: "i64",
    R: "i64",
    index_words: "i32",
    BR: tl.constexpr,
):
    o_r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    low = o_r * 0  # the sequence is in [low, low + span)
    span = N
    while span > 1:
        half = span // 2
        low += tl.where(tl.load(offsets + tl.minimum(low + half, N)) <= o_r, half, 0)
        span -= half
    live = o_r < tl.load(offsets + N)
    i_chunk = o_r - tl.load(offsets + low)
    store_index(indices, 2 * o_r, tl.where(live, low, -1), o_r < R, index_words)
    store_index(indices, 2 * o_r + 1, tl.where(live, i_chunk, -1), o_r < R, index_words)
