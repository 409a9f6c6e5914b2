// What CPU kernels of convolutions share: elements as csrc/cuda/conv.h describes where they are.
#pragma once

#include <cmath>
#include <cstring>

#include "chunk.h"  // Offsets, round_to
#include "cuda/conv.h"
#include "runtime/activation.h"

namespace gdn::cpu {

inline int64_t index_value(const int32_t* low, const int32_t* high, int32_t words) {
  return words == 2 ? static_cast<int64_t>(*high) << 32 | static_cast<uint32_t>(*low) : *low;
}

inline int64_t load_index(const IndexArg& t, int64_t i) {
  return index_value(t.low + i * t.stride, t.high + i * t.stride, t.words);
}

inline int64_t load_index(const TableArg& t, int64_t i, int64_t j) {
  const int64_t at = i * t.stride_i + j * t.stride_j;
  return index_value(t.low + at, t.high + at, t.words);
}

// An element of x's dtype T, or of float.
template <class T>
float load(const void* p, int64_t at, bool fp32) {
  return fp32 ? static_cast<const float*>(p)[at] : static_cast<float>(static_cast<const T*>(p)[at]);
}

// The column of channel c.
inline int64_t column(const GroupsArg& g, int64_t c) {
  const int64_t part = c >= 2 * g.keys ? 2 : c >= g.keys ? 1 : 0, size = part == 2 ? g.V : g.K;
  c -= part * g.keys;
  return c / size * g.width + part * g.K + c % size;
}

// Column j of channel c in a slot, `offset` elements further.
template <class T>
float load_line(const LinesArg& a, int64_t slot, int64_t c, int64_t j) {
  return load<T>(a.data, slot * a.stride_n + c * a.stride_d + j * a.stride_l, a.fp32);
}

template <class T>
void store_line(const LinesArg& a, int64_t slot, int64_t c, int64_t j, float value, int64_t offset = 0) {
  const int64_t at = slot * a.stride_n + c * a.stride_d + j * a.stride_l + offset;
  if (a.fp32)
    static_cast<float*>(a.data)[at] = value;
  else
    static_cast<T*>(a.data)[at] = static_cast<T>(value);
}

// x / (1 + e^-x) within 3 ulp, and 0 below -88, in a form that compilers turn into vector instructions: e^y = 2^n e^r
// with |r| <= log(2) / 2, where a polynomial of Cephes has e^r.
inline float silu(float x) {
  constexpr float kRound = 12582912;  // adding this rounds to integers
  const float y = -x < -87 ? -87 : -x > 88 ? 88 : -x;
  const float n = (y * 1.44269504f + kRound) - kRound, r = (y - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof(power));
  return x / (1 + (-x > 88 ? INFINITY : (p * r * r + r + 1) * power));
}

template <class T>
void load_filter(const FilterArg& a, int64_t W, int64_t c, float* w, float& bias) {
  for (int64_t j = 0; j < W; ++j) w[j] = load<T>(a.weight, c * a.stride_d + j * a.stride_w, a.weight_fp32);
  bias = a.bias != nullptr ? load<T>(a.bias, c * a.bias_stride, a.bias_fp32) : 0.0f;
}

}  // namespace gdn::cpu
