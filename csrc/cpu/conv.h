// What CPU kernels of convolutions share: elements as csrc/cuda/conv.h describes where they are.
#pragma once

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

template <class T>
void load_filter(const FilterArg& a, int64_t W, int64_t c, float* w, float& bias) {
  for (int64_t j = 0; j < W; ++j) w[j] = load<T>(a.weight, c * a.stride_d + j * a.stride_w, a.weight_fp32);
  bias = a.bias != nullptr ? load<T>(a.bias, c * a.bias_stride, a.bias_fp32) : 0.0f;
}

}  // namespace gdn::cpu
