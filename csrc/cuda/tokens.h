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

  // Row n of a dense batch.
  __device__ __forceinline__ RowTokens(uint32_t n, int tokens)
      : row(n), tokens(tokens), varlen(false), outside(false) {}

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

// By one warp: asks for one token's q, k, gates and columns [v0, v0 + BV) of v to be brought to L2. Args: tokens and
// gates as in FusedRecurrentArgs.
template <int BV, class Args>
__device__ __forceinline__ void prefetch_token(const Args& a, uint32_t row, int64_t t, uint32_t hv, uint32_t h,
                                               int v0) {
  const int size = a.dtype == kFP32 ? 4 : 2, lane = threadIdx.x % 32, of = lane / 8, at = lane % 8 * 32;
  const auto ask = [&](const RowsArg& x, int64_t begin, int size) {
    prefetch_line(static_cast<const char*>(x.data) + (row * x.stride_r + t * x.stride_t + begin) * size);
  };
  if (of == 0 && at < a.K) ask(a.q, h * a.q.stride_h + at, size);
  if (of == 1 && at < a.K) ask(a.k, h * a.k.stride_h + at, size);
  if (of == 2 && at < BV) ask(a.v, hv * a.v.stride_h + v0 + at, size);
  if (of == 3 && lane % 8 < 2) {
    const GateArg& x = lane % 8 ? a.beta : a.g;
    if (x.at.data) ask(x.at, h * x.stride_g + (hv - h * a.group) * x.at.stride_h, x.dtype == kFP32 ? 4 : 2);
  }
}

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

// g and beta of a token: as they are in memory, then as the rule uses them. Args: gates as in FusedRecurrentArgs.
struct TokenGates {
  uint32_t g, beta, A_log, dt_bias;

  template <class Args>
  __device__ __forceinline__ void load(const Args& a, uint32_t row, int64_t t, uint32_t hv, uint32_t h) {
    const auto bits = [](const GateArg& x, int64_t at) { return x.at.data ? load_bits(x.at.data, at, x.dtype) : 0; };
    const auto of_token = [&](const GateArg& x) {
      return bits(x, gate_at(x, row, h, hv - h * a.group) + t * x.at.stride_t);
    };
    g = of_token(a.g), beta = of_token(a.beta);
    A_log = bits(a.A_log, hv * a.A_log.at.stride_h), dt_bias = bits(a.dt_bias, hv * a.dt_bias.at.stride_h);
  }

  // The same where gates are raw, and those of tokens of DTYPE.
  template <int32_t DTYPE, class Args>
  __device__ __forceinline__ void load_raw(const Args& a, uint32_t row, uint32_t hv, uint32_t h) {
    g = load_bits(a.g.at.data, gate_at(a.g, row, h, hv - h * a.group), DTYPE);
    beta = load_bits(a.beta.at.data, gate_at(a.beta, row, h, hv - h * a.group), DTYPE);
    A_log = load_bits(a.A_log.at.data, hv * a.A_log.at.stride_h, a.A_log.dtype);
    dt_bias = load_bits(a.dt_bias.at.data, hv * a.dt_bias.at.stride_h, a.dt_bias.dtype);
  }

  template <class Args>
  __device__ __forceinline__ void values(const Args& a, float& log_decay, float& b) const {
    log_decay = a.g.at.data ? bits_value(g, a.g.dtype) : 0.0f,
    b = a.beta.at.data ? bits_value(beta, a.beta.dtype) : 1.0f;
    if (a.A_log.at.data)
      raw_gates(log_decay, b, bits_value(A_log, a.A_log.dtype), bits_value(dt_bias, a.dt_bias.dtype));
  }
};

}  // namespace gdn
