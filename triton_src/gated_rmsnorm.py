"""y = rmsnorm(x) * weight * act(z), or rmsnorm(x * act(z)) * weight. Sums in fp32, one rounding at the store.

x, z [n0, n1, n2, G * D]: G groups of D columns, each normalised alone; any strides but the last, which is 1. weight
[G * D] fp32 or T (weight_kind 1 or 2). y contiguous, may be x. One program handles one group of BR of the R = n0 * n1 * n2 rows.

activation: -1 no z, 0 none (the gate is z itself), 1 silu, 2 sigmoid. gate_first: the gate multiplies x before the norm.
hf_rounding: the normalised x is rounded to T before it meets the weight, and the product again if the weight is T too,
as in the RMSNormGated modules of Hugging Face transformers. Where x is zero y is, whatever z holds. These are uniform branches: as selects they would triple the
arithmetic of a kernel that is bound by bytes. ALIGNED variants: D == BD and 16-byte rows, x kept in registers; others take
rows in steps of BD and read x twice, the second time from a cache.
"""

import triton
import triton.language as tl
from common import load_gate, round_to


@triton.jit
def row_offsets(base, o_r, n1, n2, stride_0, stride_1, stride_2):
    """Offsets of rows base + o_r of [n0, n1, n2]. Divides the scalar once and small numbers per row."""
    if n1 * n2 == 1:
        offsets = (base + o_r) * stride_0
    else:
        q_2 = base // n2
        q_1 = q_2 // n1
        i_2 = (base - q_2 * n2).to(tl.int32) + o_r
        c_2 = i_2 // n2.to(tl.int32)
        i_1 = (q_2 - q_1 * n1).to(tl.int32) + c_2
        c_1 = i_1 // n1.to(tl.int32)
        offsets = (q_1 + c_1) * stride_0
        offsets += (i_1 - c_1 * n1.to(tl.int32)) * stride_1 + (i_2 - c_2 * n2.to(tl.int32)) * stride_2
    return offsets


@triton.jit
def load_gated(x, z, o_x, o_z, mask, activation, gate_first):
    """(what is normalised, the gate after the norm), both fp32 [BR, BD]."""
    b_x = tl.load(x + o_x, mask=mask, other=0.0).to(tl.float32)
    b_gate = tl.full(b_x.shape, 1.0, tl.float32)
    if activation >= 0:
        b_z = tl.load(z + o_z, mask=mask, other=0.0).to(tl.float32)
        b_z = tl.where(b_x == 0.0, 0.0, b_z)
        if activation == 0:
            b_gate = b_z
        else:
            b_s = 1.0 / (1.0 + tl.exp(-b_z))
            b_gate = tl.where(activation == 1, b_z * b_s, b_s)
        if gate_first != 0:
            b_x *= b_gate
            b_gate = tl.full(b_x.shape, 1.0, tl.float32)
    return b_x, b_gate


@triton.jit
def scaled(b_x, b_r, b_w, b_gate, hf_rounding, weight_kind, T: tl.constexpr):
    b_y = b_x * b_r[:, None]
    if hf_rounding != 0:
        b_y = round_to(b_y, T).to(tl.float32) * b_w[None, :]
        if weight_kind == 2:
            b_y = round_to(b_y, T).to(tl.float32)
    else:
        b_y *= b_w[None, :]
    return round_to(b_y * b_gate, T)


@triton.jit
def gated_rmsnorm_kernel(
    x: "*T:16?",
    weight: "*fp32:16?",
    z: "*T:16?",
    y: "*T:16",
    R: "i64",
    n1: "i64",
    n2: "i64",
    x_stride_0: "i64:16?",
    x_stride_1: "i64:16?",
    x_stride_2: "i64:16?",
    z_stride_0: "i64:16?",
    z_stride_1: "i64:16?",
    z_stride_2: "i64:16?",
    G: "i32",
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
    i_g = tl.program_id(0) % G
    base = (tl.program_id(0) // G).to(tl.int64) * BR
    o_r = tl.arange(0, BR)
    i_r = base + o_r
    o_d = tl.arange(0, BD)
    width = BD if ALIGNED else D
    o_x = row_offsets(base, o_r, n1, n2, x_stride_0, x_stride_1, x_stride_2)  # [BR]
    o_z = row_offsets(base, o_r, n1, n2, z_stride_0, z_stride_1, z_stride_2)
    o_y = i_r * G * width
    o_d += i_g * width  # columns of this group
    o_x, o_z, o_y = o_x[:, None] + o_d[None, :], o_z[:, None] + o_d[None, :], o_y[:, None] + o_d[None, :]
    m_r = (i_r < R)[:, None]  # [BR, 1]

    if ALIGNED:
        b_x, b_gate = load_gated(x, z, o_x, o_z, m_r, activation, gate_first)
        b_w = load_gate(weight, o_d, o_d >= 0, weight_kind == 1, dtype)
        b_r = tl.rsqrt(tl.sum(b_x * b_x, axis=1) / BD + eps)  # [BR]
        tl.store(y + o_y, scaled(b_x, b_r, b_w, b_gate, hf_rounding, weight_kind, dtype), mask=m_r)
    else:
        b_sum = tl.zeros([BR], tl.float32)
        end = (i_g + 1) * D
        for d in range(0, D, BD):
            mask = m_r & (o_d + d < end)[None, :]
            b_x, b_gate = load_gated(x, z, o_x + d, o_z + d, mask, activation, gate_first)
            b_sum += tl.sum(b_x * b_x, axis=1)
        b_r = tl.rsqrt(b_sum / D + eps)
        for d in range(0, D, BD):
            mask = m_r & (o_d + d < end)[None, :]
            b_x, b_gate = load_gated(x, z, o_x + d, o_z + d, mask, activation, gate_first)
            b_w = load_gate(weight, o_d + d, o_d + d < end, weight_kind == 1, dtype)
            tl.store(y + o_y + d, scaled(b_x, b_r, b_w, b_gate, hf_rounding, weight_kind, dtype), mask=mask)
