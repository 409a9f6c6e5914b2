"""y = x * rsqrt(sum(x^2) + eps) over the last dimension. Sums in fp32, one rounding at the store.

x [n0, n1, n2, D] with any strides but the last, R = n0 * n1 * n2 rows; y contiguous. One program normalises BR rows.
"""

import triton
import triton.language as tl


@triton.jit
def l2norm_kernel(
    x: "*T",
    y: "*T",
    R: "i64",
    n1: "i64",
    n2: "i64",
    stride_0: "i64",
    stride_1: "i64",
    stride_2: "i64",
    D: "i32",
    eps: "fp32",
    BR: tl.constexpr,
    BD: tl.constexpr,
):
    i_r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    o_d = tl.arange(0, BD)
    offset = i_r // n2 // n1 * stride_0 + i_r // n2 % n1 * stride_1 + i_r % n2 * stride_2  # [BR]
    mask = (i_r < R)[:, None] & (o_d < D)[None, :]
    b_x = tl.load(x + offset[:, None] + o_d[None, :], mask=mask, other=0.0).to(tl.float32)  # [BR, BD]
    b_r = tl.rsqrt(tl.sum(b_x * b_x, axis=1) + eps)  # [BR]
    tl.store(y + i_r[:, None] * D + o_d[None, :], (b_x * b_r[:, None]).to(y.dtype.element_ty), mask=mask)
