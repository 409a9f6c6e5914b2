// A row's tokens as a block takes them from memory: a vector a warp, and gates.
#pragma once

#include "gates.h"
#include "warp.h"

namespace gdn {

// The tokens of row n of a launch: one of T tokens, or a sequence of packed ones. Packed, row N has the tokens of no
// sequence: all but those from `row` on, `tokens` of them. Args: cu_seqlens, N and T as in FusedRecurrentArgs.
struct RowTokens {
  uint32_t row;  // of a batch row, or the sequence's first token
  int tokens;
  bool varlen, outside;

  template <class Args>
  __device__ __forceinline__ RowTokens(const Args& a, uint32_t n)
      : row(n), tokens(a.T), varlen(a.cu_seqlens.words != 0), outside(varlen && n == static_cast<uint32_t>(a.N)) {
    if (!varlen) return;
    const IndexBits begin = index_bits(a.cu_seqlens, outside ? 0 : n);
    const IndexBits end = index_bits(a.cu_seqlens, outside ? a.N : n + 1);
    row = bound_value(begin, a.cu_seqlens.words, a.T);
    tokens = max(bound_value(end, a.cu_seqlens.words, a.T) - static_cast<int>(row), 0);
  }

  // The row's first token among all.
  __device__ __forceinline__ int64_t first(int T) const { return varlen ? row : static_cast<int64_t>(row) * T; }

  // Padding, by all threads: f(token, column) for every token, counted from the first, that has no result, and each of
  // `width` columns.
  template <class F>
  __device__ __forceinline__ void each_dead(int T, int width, F f) const {
    const int64_t count = outside ? T - tokens : tokens;
#pragma unroll 1
    for (int64_t i = threadIdx.x; i < count * width; i += blockDim.x) {
      const int64_t t = i / width;
      f(!outside ? t : t < row ? t - row : t - row + tokens, static_cast<int>(i - t * width));
    }
  }
};

// K elements of a row of q or k, BK / 32 a lane: as they are in memory, then as the rule uses them.
template <int BK>
struct Vector {
  static constexpr int N = BK / 32;
  uint32_t bits[N];

  __device__ __forceinline__ void load(const RowsArg& x, uint32_t row, int64_t t, uint32_t h, int K, int32_t dtype) {
    const int64_t at = row * x.stride_r + t * x.stride_t + h * x.stride_h + threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const bool inside = static_cast<int>(threadIdx.x % 32) + 32 * i < K;
      bits[i] = inside ? load_bits(x.data, at + 32 * i, dtype) : 0;
    }
  }

  __device__ __forceinline__ void values(float (&y)[N], bool l2norm, float scale, int32_t dtype) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      y[i] = bits_value(bits[i], dtype);
      sum = fmaf(y[i], y[i], sum);
    }
    sum = warp_sum(sum);
    if (l2norm) scale *= rsqrtf(sum + 1e-6f);
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] *= scale;
  }
};

// g and beta of token t. Args: q, k, v and gates as in FusedRecurrentArgs.
template <class Args>
__device__ __forceinline__ void token_gates(const Args& a, uint32_t row, int64_t t, uint32_t hv, uint32_t h, float& g,
                                            float& beta) {
  const uint32_t j = hv - h * a.group;
  const auto gate = [&](const GateArg& x) { return gate_number(x, gate_at(x, row, h, j) + t * x.at.stride_t); };
  g = a.g.at.data ? gate(a.g) : 0.0f, beta = a.beta.at.data ? gate(a.beta) : 1.0f;
  if (a.A_log.at.data)
    raw_gates(g, beta, gate_number(a.A_log, hv * a.A_log.at.stride_h),
              gate_number(a.dt_bias, hv * a.dt_bias.at.stride_h));
}

}  // namespace gdn
