// One decode token a row: y = act(bias + sum_i w[:, i] x_i) over its history and itself, y's channels [q | k | v] into
// three tensors, z, a and b beside them into contiguous ones, and the history moves on. Padded rows give zeros.
//
// A row is (2 keys + values) / VEC packs of channels, values / VEC packs of z, and 2 HV gates; a thread has one item of
// one row. So one launch reads and writes everything once.
//
// Compiles for the CPU with tests/emulated_warp.h.
#include "conv_pack_gdn_decode_inputs.h"
#include "overlap.h"

namespace gdn {

template <class T, int W, int VEC>
__device__ __forceinline__ void convolve(const ConvPackGdnDecodeInputsArgs& a, int64_t row, int64_t slot, bool live,
                                         uint32_t d) {
  constexpr int H = W - 1;
  Pack<T, VEC> result = {};
  if (live) {
    Pack<T, VEC> now;
    now.load(static_cast<const T*>(a.x) + row * a.x_stride_b + d * a.x_stride_d);
    const int64_t line = slot * a.state.stride_n + d * a.state.stride_d;
    float h[H][VEC];
    load_columns<T>(a.state, line, h);
    Filter<T, W, VEC> filter;
    filter.load(a.filter, d);
    result = filter.token(now, h, a.filter.activation);
    store_columns<T>(a.state, line, h);
  }
  const uint32_t keys = a.keys;
  T* const q = static_cast<T*>(a.q) + row * keys;
  T* const k = static_cast<T*>(a.k) + row * keys;
  T* const v = static_cast<T*>(a.v) + row * a.values;
  result.store(d < keys ? q + d : d < 2 * keys ? k + (d - keys) : v + (d - 2 * keys));
}

// Elements [e, e + VEC) of a row of `width`, which lie in one head.
template <class T, int VEC>
__device__ __forceinline__ void copy(const CopyArg& t, int64_t row, bool live, int64_t width, uint32_t head, uint32_t v,
                                     uint32_t e) {
  const int64_t from = row * t.stride_b + head * t.stride_h + v * t.stride_v, to = row * width + e;
  if (t.fp32) {
#pragma unroll
    for (int i = 0; i < VEC; ++i)
      static_cast<float*>(t.to)[to + i] = live ? static_cast<const float*>(t.from)[from + i * t.stride_v] : 0.0f;
  } else {
    Pack<T, VEC> pack = {};
    if (live) pack.load(static_cast<const T*>(t.from) + from);
    pack.store(static_cast<T*>(t.to) + to);
  }
}

template <class T, int W, int VEC, int THREADS>
__device__ __forceinline__ void conv_pack(const ConvPackGdnDecodeInputsArgs& a) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  const uint32_t packs = (2 * a.keys + a.values) / VEC, z_packs = a.values / VEC, items = packs + z_packs + 2 * a.HV;
  const int64_t row = item / items;
  if (row >= a.B) return;
  uint32_t i = static_cast<uint32_t>(item - row * items);
  const int64_t slot = load_index(a.indices, row);
  const bool live = slot >= a.min_slot && slot < a.state.slots;
  if (i < packs) return convolve<T, W, VEC>(a, row, slot, live, i * VEC);
  i -= packs;
  if (i < z_packs) {
    const uint32_t head = divide(i * VEC, a.by_V);
    return copy<T, VEC>(a.z, row, live, a.values, head, i * VEC - head * a.V, i * VEC);
  }
  i -= z_packs;
  const bool b = i >= static_cast<uint32_t>(a.HV);
  const uint32_t head = i - (b ? a.HV : 0);
  copy<T, 1>(b ? a.b : a.a, row, live, a.HV, head, 0, head);
}

}  // namespace gdn

#define GDN_KERNEL(symbol, T, W, VEC, THREADS)                             \
  extern "C" __global__ void __launch_bounds__(THREADS)                    \
      symbol(const __grid_constant__ gdn::ConvPackGdnDecodeInputsArgs a) { \
    gdn::follow_kernel_ahead();                                            \
    gdn::conv_pack<T, W, VEC, THREADS>(a);                                 \
  }
GDN_VARIANTS(GDN_KERNEL)
