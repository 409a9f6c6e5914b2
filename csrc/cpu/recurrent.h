// What CPU kernels that work token by token share: index tensors, tokens and gates of their arguments.
#pragma once

#include <cmath>
#include <utility>

#include "chunk.h"  // Offsets, round_to
#include "cuda/common.h"

namespace gdn::cpu {

// Element i, or word `at` of row i of a table.
inline int64_t load_index(const IndexArg& t, int64_t i, int64_t at = 0) {
  const int32_t low = t.low[i * t.stride + at], high = t.high[i * t.stride + at];
  return t.words == 2 ? static_cast<int64_t>(high) << 32 | static_cast<uint32_t>(low) : low;
}

inline int64_t offset(const RowsArg& x, int64_t row, int64_t t, int64_t h) {
  return row * x.stride_r + t * x.stride_t + h * x.stride_h;
}

// Of value head j of key head h.
template <class T>
float gate(const GateArg& x, int64_t row, int64_t t, int64_t h, int64_t j, float missing) {
  if (x.at.data == nullptr) return missing;
  const int64_t at = offset(x.at, row, t, j) + h * x.stride_g;
  return x.dtype == kFP32 ? static_cast<const float*>(x.at.data)[at]
                          : static_cast<float>(static_cast<const T*>(x.at.data)[at]);
}

// g and beta of a token, given or raw.
template <class T, class Args>
std::pair<float, float> gates(const Args& a, int64_t row, int64_t t, int64_t hv) {
  const int64_t h = hv / a.group, j = hv % a.group;
  const float g = gate<T>(a.g, row, t, h, j, 0), beta = gate<T>(a.beta, row, t, h, j, 1);
  if (a.A_log.at.data == nullptr) return {g, beta};
  const float x = g + gate<T>(a.dt_bias, 0, 0, h, j, 0);
  return {-std::exp(gate<T>(a.A_log, 0, 0, h, j, 0)) * (x > 20 ? x : std::log1p(std::exp(x))),
          1 / (1 + std::exp(-beta))};
}

// x * rsqrt(sum x^2 + 1e-6) * scale where asked for, in float32.
template <class T>
void load_row(float* y, const T* x, int64_t K, bool l2norm, float scale) {
  float sum = 0;
  for (int64_t k = 0; k < K; ++k) sum += static_cast<float>(x[k]) * static_cast<float>(x[k]);
  if (l2norm) scale /= std::sqrt(sum + 1e-6f);
  for (int64_t k = 0; k < K; ++k) y[k] = static_cast<float>(x[k]) * scale;
}

// One token: h <- e^g h; u = beta (v - h^T k); h <- h + k u^T; o = h^T q. h [K, V].
template <class T>
void step(float* h, const float* q, const float* k, const T* v, float g, float beta, float* u, T* o, int64_t K,
          int64_t V) {
  float sum[256] = {};
  std::fill_n(u, V, 0.0f);
  const float decay = std::exp(g);
  for (int64_t i = 0; i < K; ++i)
    for (int64_t j = 0; j < V; ++j) u[j] += (h[i * V + j] *= decay) * k[i];
  for (int64_t j = 0; j < V; ++j) u[j] = beta * (static_cast<float>(v[j]) - u[j]);
  for (int64_t i = 0; i < K; ++i)
    for (int64_t j = 0; j < V; ++j) sum[j] += (h[i * V + j] += k[i] * u[j]) * q[i];
  for (int64_t j = 0; j < V; ++j) o[j] = round_to<T>(sum[j]);
}

}  // namespace gdn::cpu
