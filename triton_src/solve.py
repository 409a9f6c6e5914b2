"""A = strictly_lower(beta_i (k_i . k_j) exp(g_i - g_j)) of a chunk, and (I + A)^-1 by recursive block inversion.

    [P   ]^-1   [ P^-1             ]
    [R  Q]    = [-Q^-1 R P^-1  Q^-1]     one level: X <- X - X R X with X = diag(P^-1, Q^-1), block sizes 1, 2, 4, 8, ...

Every intermediate is an entry of the inverse of a diagonal block, so for unit keys and beta <= 1 nothing exceeds 1 and
half precision operands are enough. A power series is not: for equal keys and beta = 0.9 its terms inside a 16-row block
reach 1,500 and cancel to entries below 1, an error above 1 with fp16 or tf32 products (1e-4 here), NaN over 64 rows.

Levels up to 16 are batched 16 x 16 products (one warp a block with 4 warps). Later levels: on tensor cores masked BT x BT
products, which leave the tile where it is; in fp32, where products cost, S x S products of extracted blocks.
"""

import triton
import triton.language as tl


@triton.jit
def scaled_kkt(k, k_stride_t, K, o_t, m_t, m_A, b_g, b_beta, g_log2, BT: tl.constexpr, BK: tl.constexpr):
    """A [BT, BT] fp32 of the keys at ``k`` (offset to row and head) where m_A, zeros elsewhere; masked before exp.

    o_t, m_t, b_g, b_beta [BT]: tokens, which of them are read, cumulative gates and beta; g_log2: log2 of the gates' base.
    """
    b_A = tl.zeros([BT, BT], tl.float32)
    for i_k in range(0, K, BK):
        o_k = i_k + tl.arange(0, BK)
        b_k = tl.load(k + o_t[:, None] * k_stride_t + o_k[None, :], mask=m_t[:, None] & (o_k < K)[None, :], other=0.0)
        b_A = tl.dot(b_k, tl.trans(b_k), b_A)
    b_decay = tl.exp2(tl.where(m_A, b_g[:, None] - b_g[None, :], 0.0) * g_log2)  # [BT, BT]
    return tl.where(m_A, b_A * b_beta[:, None] * b_decay, 0.0)


@triton.jit
def _product(a, b, PREC: tl.constexpr):
    if PREC == "fp16":
        return tl.dot(a.to(tl.float16), b.to(tl.float16))
    else:
        return tl.dot(a, b, input_precision=PREC)


@triton.jit
def _below_diagonal(BT: tl.constexpr, S: tl.constexpr):
    """[BT, BT]: the blocks R of the level that joins S x S blocks in pairs."""
    o_r = tl.arange(0, BT)[:, None]
    o_c = tl.arange(0, BT)[None, :]
    return (o_r // (2 * S) == o_c // (2 * S)) & (o_r // S == o_c // S + 1)


@triton.jit
def _split_blocks(x, n: tl.constexpr, S: tl.constexpr):
    """[n, 2S, 2S] -> (diagonal blocks [2n, S, S], lower left blocks [n, S, S])."""
    upper, lower = tl.split(tl.permute(tl.reshape(x, (n, 2, S, 2, S)), (0, 2, 4, 3, 1)))  # [n, S, S, 2]
    b_P, _ = tl.split(upper)
    b_R, b_Q = tl.split(lower)
    return tl.reshape(tl.permute(tl.join(b_P, b_Q), (0, 3, 1, 2)), (2 * n, S, S)), b_R


@triton.jit
def _join_level(b_X, b_R, n: tl.constexpr, S: tl.constexpr, PREC: tl.constexpr):
    """Inverses [2n, S, S] of diagonal blocks, R [n, S, S] below each pair of them -> inverses [n, 2S, 2S]."""
    b_P, b_Q = tl.split(tl.permute(tl.reshape(b_X, (n, 2, S, S)), (0, 2, 3, 1)))
    upper = tl.join(b_P, tl.zeros_like(b_P))
    lower = tl.join(-_product(_product(b_Q, b_R, PREC), b_P, PREC), b_Q)
    return tl.reshape(tl.permute(tl.join(upper, lower), (0, 4, 1, 3, 2)), (n, 2 * S, 2 * S))


@triton.jit
def invert_unit_lower(b_A, BT: tl.constexpr, PREC: tl.constexpr):
    """(I + A)^-1 of ``b_A`` [BT, BT] fp32, strictly lower (elsewhere ignored), BT = 16, 32 or 64, as fp32.

    ``PREC`` of the products (sums are fp32): "fp16" (fastest; |A| and the result must stay below 65504), "tf32" (same
    accuracy, any range) or "ieee" (fp32). Max error for unit keys and beta <= 1: fp16 and tf32 8e-4, ieee 3e-7.
    """
    NB: tl.constexpr = BT // 16
    o_b = tl.arange(0, NB)
    diagonal = o_b[:, None, None, None] == o_b[None, None, :, None]  # [NB, 1, NB, 1]
    if PREC == "ieee":
        b_D = tl.reshape(b_A, (BT // BT, BT, BT))
        if BT > 32:
            b_D, b_R32 = _split_blocks(b_D, 1, 32)
        if BT > 16:
            b_D, b_R16 = _split_blocks(b_D, BT // 32, 16)
    else:
        b_D = tl.sum(tl.where(diagonal, tl.reshape(b_A, (NB, 16, NB, 16)), 0.0), axis=2)  # [NB, 16, 16]

    o_i = tl.arange(0, 16)
    b_I = (o_i[:, None] == o_i[None, :]).to(tl.float32)[None, :, :]
    b_X = b_I - tl.where(_below_diagonal(16, 1)[None, :, :], b_D, 0.0)
    for level in tl.static_range(1, 4):
        b_R = tl.where(_below_diagonal(16, 1 << level)[None, :, :], b_D, 0.0)
        b_X -= _product(_product(b_X, b_R, PREC), b_X, PREC)

    if PREC == "ieee":
        if BT > 16:
            b_X = _join_level(b_X, b_R16, BT // 32, 16, PREC)
        if BT > 32:
            b_X = _join_level(b_X, b_R32, 1, 32, PREC)
        return tl.reshape(b_X, (BT, BT))
    else:
        b_X = tl.reshape(tl.where(diagonal, b_X[:, :, None, :], 0.0), (BT, BT))
        for level in tl.static_range(4, 6):
            if BT > (1 << level):
                b_R = tl.where(_below_diagonal(BT, 1 << level), b_A, 0.0)
                b_X -= _product(_product(b_X, b_R, PREC), b_X, PREC)
        return b_X
