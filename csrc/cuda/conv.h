// What the convolution kernels share: where inputs, filters and states are, which host and device see alike, and on the
// device the arithmetic of one token.
#pragma once

#include "common.h"

namespace gdn {

// Where channels of tokens of batch rows are, in elements.
struct TokensArg {
  int64_t stride_b, stride_t, stride_d;
};

// Channels [q | k | v] in the columns of a projection of groups [q K | k K | v V | ...], `width` columns each (V: of
// all value heads of a group). Channel c is column c where there are only v channels, and one group.
struct GroupsArg {
  int32_t keys;  // channels of q, and of k
  int32_t K, width;
  int32_t V;
  Divisor by_K, by_V;
};

struct FilterArg {
  const void* weight;  // [D, W]
  const void* bias;    // [D]; null: none
  int64_t stride_d, stride_w, bias_stride;
  int32_t weight_fp32;  // flags: fp32, otherwise as x
  int32_t bias_fp32;
  int32_t packed;      // flag: weight is contiguous, on a pack, as x
  int32_t activation;  // kNone, kSilu
};

// Lines of inputs, [slots, D, L].
struct LinesArg {
  void* data;
  int64_t stride_n, stride_d, stride_l;
  int64_t slots;
  int32_t fp32;    // flag: fp32, otherwise as x
  int32_t layout;  // kAnyLines, or packs of VEC elements as x: kChannelsLast, kPackedLines, kWholeLines
};

// How lines lie in memory: any strides; channels of a column contiguous; the W - 1 columns of a channel contiguous and
// channels one after another; the same with up to kMostColumns of them, and a warp's lines begin on 16 bytes.
constexpr int32_t kAnyLines = 0, kChannelsLast = 1, kPackedLines = 2, kWholeLines = 3;
constexpr int32_t kMostColumns = 16;

}  // namespace gdn

#ifdef GDN_DEVICE

#include "packs.h"
#include "runtime/activation.h"

namespace gdn {

// Elements between x's first column and that of channel d.
__device__ __forceinline__ int64_t column(const GroupsArg& g, int64_t stride_d, int64_t d) {
  const uint32_t c = static_cast<uint32_t>(d), keys = g.keys;
  const bool v = c >= 2 * keys, k = !v && c >= keys;
  const uint32_t rest = c - (v ? 2 * keys : k ? keys : 0), group = divide(rest, v ? g.by_V : g.by_K);
  const uint32_t at = rest - group * (v ? g.V : g.K) + (v ? 2 * g.K : k ? g.K : 0);
  return (static_cast<int64_t>(group) * g.width + at) * stride_d;
}

__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }

// N columns of the lines of VEC channels, the first of which is element `at`.
template <class T, int VEC, int N>
__device__ __forceinline__ void load_columns(const LinesArg& a, int64_t at, float (&x)[N][VEC]) {
  const T* p = static_cast<const T*>(a.data) + at;
  if (VEC > 1 && a.layout == kChannelsLast) {
#pragma unroll
    for (int i = 0; i < N; ++i) load_pack(p + i * a.stride_l, x[i]);
  } else if (VEC > 2 && N > 1 && a.layout == kPackedLines) {
    load_lines<T, VEC, N>(p, x);
  } else {
    load_strided<T>(a.data, at, a.stride_d, a.stride_l, a.fp32, x);
  }
}

template <class T, int VEC, int N>
__device__ __forceinline__ void store_columns(const LinesArg& a, int64_t at, const float (&x)[N][VEC]) {
  T* p = static_cast<T*>(a.data) + at;
  if (VEC > 1 && a.layout == kChannelsLast) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      Pack<T, VEC> pack;
      pack.set_exact(x[i]);
      pack.store(p + i * a.stride_l);
    }
  } else if (VEC > 2 && N > 1 && a.layout == kPackedLines) {
    store_lines<T, VEC, N>(p, x);
  } else {
    store_strided<T>(a.data, at, a.stride_d, a.stride_l, a.fp32, x);
  }
}

// Weights and bias of VEC channels.
template <class T, int W, int VEC>
struct Filter {
  float w[W][VEC], bias[1][VEC] = {};

  __device__ __forceinline__ void load(const FilterArg& a, int64_t d) {
    if (VEC > 2 && a.packed)
      load_lines<T, VEC, W>(static_cast<const T*>(a.weight) + d * W, w);
    else
      load_strided<T>(a.weight, d * a.stride_d, a.stride_d, a.stride_w, a.weight_fp32, w);
    if (a.bias) load_strided<T>(a.bias, d * a.bias_stride, a.bias_stride, 0, a.bias_fp32, bias);
  }

  // The result of one token; h, the W - 1 inputs before it, moves on.
  __device__ __forceinline__ Pack<T, VEC> token(const Pack<T, VEC>& now, float (&h)[W - 1][VEC],
                                                int32_t activation) const {
    constexpr int H = W - 1;
    float sum[VEC];
#pragma unroll
    for (int c = 0; c < VEC; ++c) {
      const float newest = now.at(c);
      sum[c] = bias[0][c];
#pragma unroll
      for (int i = 0; i < H; ++i) sum[c] = fmaf(w[i][c], h[i][c], sum[c]);
      sum[c] = fmaf(w[H][c], newest, sum[c]);
#pragma unroll
      for (int i = 0; i + 1 < H; ++i) h[i][c] = h[i + 1][c];
      h[H - 1][c] = newest;
    }
    if (activation == kSilu) {
#pragma unroll
      for (int c = 0; c < VEC; ++c) sum[c] = silu(sum[c]);
    }
    Pack<T, VEC> pack;
    pack.set(sum);
    return pack;
  }
};

}  // namespace gdn

#endif  // GDN_DEVICE
