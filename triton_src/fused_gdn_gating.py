"""g = -exp(A_log) * softplus(a + dt_bias), beta = sigmoid(b), in fp32.

a, b [n0, n1, n2, HV] with any strides, R = n0 * n1 * n2 rows, their heads in groups of r (slices of an interleaved projection: head
h is at h // r * stride_g + h % r * stride_h); A_log, dt_bias [HV] with any stride; g, beta contiguous
[R, HV] fp32. Each input is fp32 or T (kind 1 or 2, see load_gate). One program handles BR rows of BH heads.

softplus(x) = log(1 + exp(softplus_beta * x)) / softplus_beta, or x where softplus_beta * x > softplus_threshold.
"""

import triton
import triton.language as tl
from common import load_gate


@triton.jit
def log1p_unit(e):
    """log(1 + e) for 0 <= e <= 1 to fp32 accuracy, also where 1 + e rounds to 1: 2 atanh(s), s = e / (2 + e) <= 1/3."""
    s = e / (2.0 + e)
    s2 = s * s
    p = s2 * (1.0 / 15.0) + 1.0 / 13.0
    p = p * s2 + 1.0 / 11.0
    p = p * s2 + 1.0 / 9.0
    p = p * s2 + 1.0 / 7.0
    p = p * s2 + 1.0 / 5.0
    p = p * s2 + 1.0 / 3.0
    return 2.0 * s + 2.0 * s * s2 * p


@triton.jit
def softplus(x, beta, threshold):
    """log(1 + exp(beta * x)) / beta; x where beta * x > threshold. Neither overflows nor loses small values."""
    bx = x * beta
    y = tl.where(bx > 0.0, bx, 0.0) + log1p_unit(tl.exp(tl.where(bx > 0.0, -bx, bx)))
    return tl.where(bx > threshold, x, y / beta)


@triton.jit
def fused_gdn_gating_kernel(
    A_log: "*fp32",
    a: "*fp32",
    b: "*fp32",
    dt_bias: "*fp32",
    g: "*fp32:16",
    beta: "*fp32:16",
    R: "i64",
    n1: "i64",
    n2: "i64",
    A_stride: "i64",
    dt_stride: "i64",
    a_stride_0: "i64",
    a_stride_1: "i64",
    a_stride_2: "i64",
    a_stride_g: "i64",
    a_stride_h: "i64",
    b_stride_0: "i64",
    b_stride_1: "i64",
    b_stride_2: "i64",
    b_stride_g: "i64",
    b_stride_h: "i64",
    HV: "i32",
    r: "i32",
    A_kind: "i32",
    a_kind: "i32",
    b_kind: "i32",
    dt_kind: "i32",
    softplus_beta: "fp32",
    softplus_threshold: "fp32",
    T: tl.constexpr,
    BR: tl.constexpr,
    BH: tl.constexpr,
):
    half: tl.constexpr = tl.bfloat16 if T == "bf16" else tl.float16
    NH = (HV + BH - 1) // BH
    i_r = (tl.program_id(0) // NH).to(tl.int64) * BR + tl.arange(0, BR)
    o_h = tl.program_id(0) % NH * BH + tl.arange(0, BH)
    m_h = o_h < HV
    mask = (i_r < R)[:, None] & m_h[None, :]
    i_0, i_1, i_2 = i_r // n2 // n1, i_r // n2 % n1, i_r % n2
    o_g = o_h // r
    o_a = (i_0 * a_stride_0 + i_1 * a_stride_1 + i_2 * a_stride_2)[:, None] + (o_g * a_stride_g + (o_h - o_g * r) * a_stride_h)[None, :]
    o_b = (i_0 * b_stride_0 + i_1 * b_stride_1 + i_2 * b_stride_2)[:, None] + (o_g * b_stride_g + (o_h - o_g * r) * b_stride_h)[None, :]

    b_A = load_gate(A_log, o_h * A_stride, m_h, A_kind == 1, half)  # [BH]
    b_dt = load_gate(dt_bias, o_h * dt_stride, m_h, dt_kind == 1, half)  # [BH]
    b_a = load_gate(a, o_a, mask, a_kind == 1, half)  # [BR, BH]
    b_b = load_gate(b, o_b, mask, b_kind == 1, half)  # [BR, BH]
    b_g = -tl.exp(b_A)[None, :] * softplus(b_a + b_dt[None, :], softplus_beta, softplus_threshold)
    b_beta = 1.0 / (1.0 + tl.exp(-b_b))
    o = i_r[:, None] * HV + o_h[None, :]
    tl.store(g + o, b_g, mask=mask)
    tl.store(beta + o, b_beta, mask=mask)
