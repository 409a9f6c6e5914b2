"""What the kernels share: index tensors, gates of either dtype, and the way from a program to its chunk.

Index tensors (cu_seqlens, slots) are int32 or int64 with any stride. A kernel sees them as 32-bit words: element i is
at word ``i * stride`` and is ``words`` (1 or 2) words long; ``words == 0`` says that the tensor was not given.
"""

import triton
import triton.language as tl


@triton.jit
def load_index(p, i, stride, words):
    """Element i of an index tensor, as int64."""
    at = p + i * stride
    low = tl.load(at).to(tl.int64)
    high = tl.load(at + words - 1).to(tl.int64)
    return tl.where(words == 2, (high << 32) | (low & 0xFFFFFFFF), low)


@triton.jit
def store_index(p, i, value, mask, words):
    """Element i of a contiguous index tensor of ``words``-word integers, from int64."""
    tl.store(p + i * words, value.to(tl.int32), mask=mask)
    tl.store(p + i * words + 1, (value >> 32).to(tl.int32), mask=mask & (words == 2))


@triton.jit
def load_gate(p, offset, mask, is_fp32, T: tl.constexpr):
    """Gate values as float32 from ``p`` (*fp32) or, where ``is_fp32`` is 0, from the same address as dtype ``T``."""
    wide = tl.load(p + offset, mask=mask & (is_fp32 != 0), other=0.0)
    narrow = tl.load(p.to(tl.pointer_type(T)) + offset, mask=mask & (is_fp32 == 0), other=0.0)
    return wide + narrow.to(tl.float32)


@triton.jit
def load_bound(cu_seqlens, i, stride, words, T):
    """Entry i of cu_seqlens, clamped to [0, T]."""
    return tl.minimum(tl.maximum(load_index(cu_seqlens, i, stride, words), 0), T)


@triton.jit
def find_chunk(i_c, cu_seqlens, cu_stride, cu_words, N, T, BT: tl.constexpr, SPARE=1):
    """Chunk slot i_c -> (i_n, i_b, bos, eos, i_t): sequence, batch row, the sequence's tokens [bos, eos) in that row, and
    the chunk's first token.

    Dense (cu_words == 0): N rows of ceil(T / BT) chunks. Varlen: floor(T / BT) + N + 2 slots, found without reading
    lengths on the host: with segments -1 (tokens before the first sequence), 0 .. N-1 and N (tokens after the last),
    segment s starts at slot floor(start_s / BT) + s + 1, which leaves room for its ceil(len / BT) chunks. A slot with
    i_t >= eos has no chunk; a segment outside 0 .. N-1 holds tokens that belong to no sequence. With SPARE = 2 a sequence
    has room for a chunk more, and its first chunk may start up to BT - 1 tokens before it.
    """
    i_c = i_c.to(tl.int64)
    if cu_words == 0:
        NT = (T + BT - 1) // BT + SPARE - 1
        i_n = i_c // NT
        i_b = i_n
        bos = i_c * 0
        eos = bos + T
        i_t = (i_c - i_n * NT) * BT
    else:
        low = i_c * 0 - 1
        high = i_c * 0 + N
        while low < high:
            middle = (low + high + 1) // 2
            start = load_bound(cu_seqlens, middle, cu_stride, cu_words, T) // BT + SPARE * (middle + 1)
            low = tl.where(start <= i_c, middle, low)
            high = tl.where(start <= i_c, high, middle - 1)
        i_n = low
        i_b = i_c * 0
        bos = load_bound(cu_seqlens, tl.maximum(low, 0), cu_stride, cu_words, T)
        eos = load_bound(cu_seqlens, tl.minimum(low + 1, N), cu_stride, cu_words, T)
        bos = tl.where(low < 0, 0, bos)
        eos = tl.where(low >= N, T, eos)
        i_t = bos + (i_c - tl.where(low < 0, 0, bos // BT + SPARE * (low + 1))) * BT
    return i_n, i_b, bos, eos, i_t


@triton.jit
def chunk_lead(i_n, prefix, prefix_stride, prefix_words, BT: tl.constexpr):
    """Tokens by which the first chunk of sequence i_n starts before it, where chunks lie on multiples of BT from prefix on."""
    before = i_n * 0
    if prefix_words != 0:
        before = load_index(prefix, i_n, prefix_stride, prefix_words) & (BT - 1)
    return before


@triton.jit
def chunk_offset(i_n, cu_seqlens, cu_stride, cu_words, T, BT: tl.constexpr):
    """Chunks of all sequences before i_n (dense: rows of ceil(T / BT)): the row of its first chunk in a compact list."""
    if cu_words == 0:
        count = i_n.to(tl.int64) * ((T + BT - 1) // BT)
    else:
        count = i_n.to(tl.int64) * 0
        for i in range(0, i_n, 128):
            o_n = i + tl.arange(0, 128)
            o_in = tl.minimum(o_n, i_n - 1)
            start = load_bound(cu_seqlens, o_in, cu_stride, cu_words, T)
            length = tl.maximum(load_bound(cu_seqlens, o_in + 1, cu_stride, cu_words, T) - start, 0)
            count += tl.sum(tl.where(o_n < i_n, (length + BT - 1) // BT, 0))
    return count


@triton.jit
def round_to(x, dtype: tl.constexpr):
    """x (float32) as ``dtype``; float16 saturates at its largest finite value instead of becoming infinite."""
    if dtype == tl.float16:
        x = tl.where(x > 65504.0, 65504.0, tl.where(x < -65504.0, -65504.0, x))
    return x.to(dtype)


@triton.jit
def load_state(p, offset, mask, kind):
    """State values as float32 from ``p`` (*fp32): kind 0 zeros without a read, 1 fp32, 2 bf16, 3 fp16."""
    wide = tl.load(p + offset, mask=mask & (kind == 1), other=0.0)
    half = tl.load(p.to(tl.pointer_type(tl.int16)) + offset, mask=mask & (kind > 1), other=0)
    narrow = tl.where(kind == 2, half.to(tl.bfloat16, bitcast=True).to(tl.float32), half.to(tl.float16, bitcast=True).to(tl.float32))
    return tl.where(kind == 1, wide, narrow)


@triton.jit
def store_state(p, offset, x, mask, kind):
    """Stores x (float32) at ``p`` (*fp32) as load_state reads it; float16 saturates."""
    tl.store(p + offset, x, mask=mask & (kind == 1))
    tl.store(p.to(tl.pointer_type(tl.bfloat16)) + offset, x.to(tl.bfloat16), mask=mask & (kind == 2))
    tl.store(p.to(tl.pointer_type(tl.float16)) + offset, round_to(x, tl.float16), mask=mask & (kind == 3))


@triton.jit
def zero_range(p, begin, end, i, n, BLOCK: tl.constexpr):
    """Zeros elements [begin, end) of ``p``: the share of program i of n."""
    for at in range(begin + i.to(tl.int64) * BLOCK, end, n * BLOCK):
        o = at + tl.arange(0, BLOCK)
        tl.store(p + o, tl.zeros([BLOCK], p.dtype.element_ty), mask=o < end)
