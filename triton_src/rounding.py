"""Roundings of states that are not the hardware's, in integers: the bits of csrc/cuda/rounding.h, which says more."""

import triton
import triton.language as tl


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def round_at_random(x, seed, slot, element):
    """x (fp32, two dimensions) to one of the two numbers of bf16 round it, by 16 random bits for element (hv * K + k) * V + v of a slot."""
    one = tl.zeros([1, 1], tl.int64)  # a block, as the interpreter warns of numbers that wrap round; not x's, for its size
    key = (one + tl.load(seed)).to(tl.uint64, bitcast=True) + 0x9E3779B97F4A7C15
    key = _mix(_mix(key) + (one + slot).to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15)
    r = element.to(tl.uint32) ^ key.to(tl.uint32)
    r = (r ^ (r >> 16)) * 0x7FEB352D
    r = (r ^ (r >> 15)) + (key >> 32).to(tl.uint32)
    r = (r ^ (r >> 16)) * 0x846CA68B
    r = (r ^ (r >> 15)) * 0x9E3779B1
    bits = x.to(tl.uint32, bitcast=True)
    moved = bits + (r >> 16)
    quiet = tl.where((bits & 0x007FFFFF) != 0, bits | 0x00400000, bits)  # infinities and NaN stay
    bits = tl.where((bits & 0x7F800000) == 0x7F800000, quiet, moved) >> 16 << 16
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def fp8_value(x):
    """Bits of e4m3fn (uint8) as float32."""
    bits = x.to(tl.int32)
    size = bits & 0x7F
    normal = ((size << 20) + (120 << 23)).to(tl.float32, bitcast=True)
    y = tl.where(size < 8, size.to(tl.float32) * 0.001953125, normal)
    y = tl.where(size == 0x7F, float("nan"), y)
    return tl.where((bits & 0x80) != 0, -y, y)


@triton.jit
def to_fp8(x):
    """The bits of x (fp32) in e4m3fn: to nearest, ties to even, saturated at +-448, infinities too."""
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    small = (size.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    y = tl.where(size < 0x3C800000, small, normal)
    y = tl.where(size >= 0x43E00000, 0x7E, y)
    y = tl.where(size > 0x7F800000, 0x7F, y)
    return (y | ((bits >> 24) & 0x80)).to(tl.uint8)
