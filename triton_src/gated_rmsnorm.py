"""y = rmsnorm(x) * weight * act(z), or rmsnorm(x * act(z)) * weight. Sums in fp32, one rounding at the store.

x, z [n0, n1, n2, G * D]: G groups of D columns, each normalised alone; any strides but the last, which is 1. weight
[G * D] fp32 or T (weight_kind 1 or 2). y contiguous. One program handles BR of the R = n0 * n1 * n2 * G rows of D.

activation: -1 no z, 0 none (the gate is z itself), 1 silu, 2 sigmoid. gate_first: the gate multiplies x before the norm.
hf_rounding: the normalised x is rounded to T before it meets the weight, and the product again if the weight is T too,
as in the RMSNormGated modules of Hugging Face transformers. ALIGNED variants: D == BD and 16-byte rows, x kept in
registers; others take rows in steps of BD and read x twice, the second time from a cache.
"""

import triton
import triton.language as tl
from common import load_gate, round_to


@triton.jit
def carry(base, o, n):
    """base + o, for a scalar base and small offsets o, split by n: the quotients (again base + offset), the remainders."""
    q = base // n
    r = (base - q * n).to(tl.int32) + o
    c = r // n.to(tl.int32)
    return q, c, r - c * n.to(tl.int32)


@triton.jit
def load_gated(x, z, o_x, o_z, mask, activation, gate_first):
    """(what is normalised, the gate after the norm), both fp32 [BR, BD]."""
    b_x = tl.load(x + o_x, mask=mask, other=0.0).to(tl.float32)
    b_z = tl.load(z + o_z, mask=mask & (activation >= 0), other=0.0).to(tl.float32)
    b_s = 1.0 / (1.0 + tl.exp(-b_z))
    b_gate = tl.where(activation == 1, b_z * b_s, tl.where(activation == 2, b_s, tl.where(activation == 0, b_z, 1.0)))
    return tl.where(gate_first, b_x * b_gate, b_x), tl.where(gate_first, 1.0, b_gate)


@triton.jit
def scaled(b_x, b_r, b_w, b_gate, hf_rounding, weight_kind, T: tl.constexpr):
    b_n = b_x * b_r[:, None]
    b_n = tl.where(hf_rounding, round_to(b_n, T).to(tl.float32), b_n)
    b_y = b_n * b_w
    b_y = tl.where(hf_rounding & (weight_kind == 2), round_to(b_y, T).to(tl.float32), b_y)
    return round_to(b_y * b_gate, T)


@triton.jit
def gated_rmsnorm_kernel(
    x: "*T:16?",
    weight: "*fp32",
    z: "*T:16?",
    y: "*T:16",
    R: "i64",
    n1: "i64",
    n2: "i64",
    G: "i64",
    x_stride_0: "i64:16?",
    x_stride_1: "i64:16?",
    x_stride_2: "i64:16?",
    z_stride_0: "i64:16?",
    z_stride_1: "i64:16?",
    z_stride_2: "i64:16?",
    D: "i32",
    activation: "i32",
    gate_first: "i32",
    hf_rounding: "i32",
    weight_kind: "i32",
    eps: "fp32",
    BD: tl.constexpr,
    ALIGNED: tl.constexpr,
    BR: tl.constexpr,
):
    dtype: tl.constexpr = y.dtype.element_ty
    base = tl.program_id(0).to(tl.int64) * BR
    o_r = tl.arange(0, BR)
    i_r = base + o_r
    q, c, i_g = carry(base, o_r, G)
    q, c, i_2 = carry(q, c, n2)
    q, c, i_1 = carry(q, c, n1)
    i_0 = q + c
    o_d = tl.arange(0, BD)
    width = BD if ALIGNED else D
    o_x = i_0 * x_stride_0 + i_1 * x_stride_1 + i_2 * x_stride_2 + i_g.to(tl.int64) * width  # [BR]
    o_z = i_0 * z_stride_0 + i_1 * z_stride_1 + i_2 * z_stride_2 + i_g.to(tl.int64) * width
    o_x, o_z, o_y = o_x[:, None] + o_d[None, :], o_z[:, None] + o_d[None, :], (i_r * width)[:, None] + o_d[None, :]
    o_w = i_g[:, None] * width + o_d[None, :]
    m_r = (i_r < R)[:, None]  # [BR, 1]

    if ALIGNED:
        b_x, b_gate = load_gated(x, z, o_x, o_z, m_r, activation, gate_first != 0)
        b_r = tl.rsqrt(tl.sum(b_x * b_x, axis=1) / BD + eps)  # [BR]
        b_w = load_gate(weight, o_w, m_r, weight_kind == 1, dtype)
        tl.store(y + o_y, scaled(b_x, b_r, b_w, b_gate, hf_rounding != 0, weight_kind, dtype), mask=m_r)
    else:
        b_sum = tl.zeros([BR], tl.float32)
        for d in range(0, D, BD):
            b_x, b_gate = load_gated(x, z, o_x + d, o_z + d, m_r & (o_d + d < D)[None, :], activation, gate_first != 0)
            b_sum += tl.sum(b_x * b_x, axis=1)
        b_r = tl.rsqrt(b_sum / D + eps)
        for d in range(0, D, BD):
            mask = m_r & (o_d + d < D)[None, :]
            b_x, b_gate = load_gated(x, z, o_x + d, o_z + d, mask, activation, gate_first != 0)
            b_w = load_gate(weight, o_w + d, mask, weight_kind == 1, dtype)
            tl.store(y + o_y + d, scaled(b_x, b_r, b_w, b_gate, hf_rounding != 0, weight_kind, dtype), mask=mask)
