"""lens[n] = cu_seqlens[n + 1] - cu_seqlens[n], at least 0, in cu_seqlens' dtype. One program makes BN lengths."""

import triton
import triton.language as tl
from common import load_bound, store_index


@triton.jit
def prepare_lens_kernel(
    cu_seqlens: "*i32",
    lens: "*i32:16",
    N: "i64",
    T: "i64",
    cu_stride: "i64",
    cu_words: "i32",
    BN: tl.constexpr,
):
    o_n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    o_in = tl.minimum(o_n, N - 1)
    start = load_bound(cu_seqlens, o_in, cu_stride, cu_words, T)
    end = load_bound(cu_seqlens, o_in + 1, cu_stride, cu_words, T)
    store_index(lens, o_n, tl.maximum(end - start, 0), o_n < N, cu_words)
