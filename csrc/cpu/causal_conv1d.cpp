#include <cmath>

#include "chunk.h"
#include "gen/kernels.h"
#include "runtime/activation.h"

namespace gdn::cpu {

namespace {

template <class T>
float load(const void* p, int64_t at, bool fp32) {
  return fp32 ? static_cast<const float*>(p)[at] : static_cast<float>(static_cast<const T*>(p)[at]);
}

// The slot of sequence n, or -1 if it is padding.
int64_t slot_of(const CausalConv1dArgs& a, int64_t n) {
  if (a.indices.words == 0) return n;
  const int32_t *low = a.indices.low + n * a.indices.stride, *high = a.indices.high + n * a.indices.stride;
  const int64_t slot = a.indices.words == 2 ? static_cast<int64_t>(*high) << 32 | static_cast<uint32_t>(*low) : *low;
  return slot >= a.min_slot && slot < a.slots ? slot : -1;
}

constexpr int64_t kBlock = 64;  // channels that are walked along together

// Channels [d, d + n) of one sequence of `length` tokens, the first of which is at x and y (of channel 0).
template <class T>
void channels(const CausalConv1dArgs& a, const T* x, T* y, int64_t length, int64_t d, int64_t n, int64_t slot,
              bool history) {
  const int64_t H = a.W - 1;
  // Input t of a channel; t < 0: of its history.
  auto input = [&](int64_t t, int64_t c) {
    if (t >= 0) return static_cast<float>(x[t * a.x_at.stride_t + c * a.x_at.stride_d]);
    if (!history) return 0.0f;
    const int64_t at = slot * a.state_stride_n + c * a.state_stride_d + (a.line + t) * a.state_stride_l;
    return load<T>(a.state, at, a.state_fp32);
  };
  float w[kBlock][4], bias[kBlock], window[kBlock][4];
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j <= H; ++j)
      w[i][j] = load<T>(a.weight, (d + i) * a.weight_stride_d + j * a.weight_stride_w, a.weight_fp32);
    for (int64_t j = 0; j < H; ++j) window[i][j + 1] = input(j - H, d + i);
    bias[i] = a.bias != nullptr ? load<T>(a.bias, (d + i) * a.bias_stride, a.bias_fp32) : 0.0f;
  }
  for (int64_t t = 0; t < length; ++t)
    for (int64_t i = 0; i < n; ++i) {
      float sum = bias[i];
      for (int64_t j = 0; j < H; ++j) sum += w[i][j] * (window[i][j] = window[i][j + 1]);
      sum += w[i][H] * (window[i][H] = input(t, d + i));
      y[t * a.y_at.stride_t + (d + i) * a.y_at.stride_d] =
          round_to<T>(a.activation == kSilu ? sum / (1 + std::exp(-sum)) : sum);
    }
  if (a.state == nullptr || length == 0) return;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < a.line; ++j) {  // upwards: columns are read before they are written
      const float value = input(length + j - a.line, d + i);
      const int64_t at = slot * a.state_stride_n + (d + i) * a.state_stride_d + j * a.state_stride_l;
      if (a.state_fp32)
        static_cast<float*>(a.state)[at] = value;
      else
        static_cast<T*>(a.state)[at] = static_cast<T>(value);
    }
}

}  // namespace

void causal_conv1d(const kernels::causal_conv1d::Keys& keys, const kernels::causal_conv1d::Args& a) {
  with_float(keys.T, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const bool varlen = a.cu_seqlens.words != 0;
    const Offsets cu{a.cu_seqlens.low, a.cu_seqlens.stride, a.cu_seqlens.words, a.T};
    const T* x = static_cast<const T*>(a.x);
    T* y = static_cast<T*>(a.y);
    auto zero = [&](T* row, int64_t begin, int64_t end, int64_t d, int64_t n) {
      for (int64_t t = begin; t < end; ++t)
        for (int64_t i = d; i < d + n; ++i) row[t * a.y_at.stride_t + i * a.y_at.stride_d] = static_cast<T>(0.0f);
    };
    const int64_t blocks = (a.D + kBlock - 1) / kBlock;
    // Sequence -1: the tokens outside of all of them.
    parallel((a.N + 1) * blocks, kBlock * (a.N > 0 ? a.T / a.N + 1 : 1) * a.W, [&](int64_t item) {
      const int64_t s = item / blocks - 1, d = item % blocks * kBlock, n = std::min(kBlock, a.D - d);
      if (s < 0) {
        if (!varlen) return;
        zero(y, 0, a.N > 0 ? cu[0] : a.T, d, n);
        if (a.N > 0) zero(y, cu[a.N], a.T, d, n);
        return;
      }
      const int64_t bos = varlen ? cu[s] : 0, eos = varlen ? std::max(bos, cu[s + 1]) : a.T;
      const T* x_row = x + (varlen ? 0 : s) * a.x_at.stride_b;
      T* y_row = y + (varlen ? 0 : s) * a.y_at.stride_b;
      const int64_t slot = slot_of(a, s);
      if (slot < 0) return zero(y_row, bos, eos, d, n);
      const bool history =
          a.state != nullptr && (a.has_state != nullptr ? a.has_state[s * a.has_state_stride] != 0 : a.history != 0);
      channels<T>(a, x_row + bos * a.x_at.stride_t, y_row + bos * a.y_at.stride_t, eos - bos, d, n, slot, history);
    });
  });
}

}  // namespace gdn::cpu
