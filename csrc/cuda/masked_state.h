// As HeadState (head_state.h), for any K up to 256, any V, any alignment and any dtype: element by element, masked by
// run-time sizes. A block of 256 threads has 32 columns.
#pragma once

#include "head_state.h"

namespace gdn {

template <bool VFIRST>
struct MaskedState : ReadOuts<8, 32> {
  static constexpr int BK = 256, BV = 32, WARPS = 8, THREADS = 32 * WARPS, LOADS = BK * BV / THREADS;
  static constexpr int PARTS = WARPS;  // read-outs come as this many sums

  float x[LOADS];
  int K, columns;  // of the tile
  int32_t dtype;

  // columns: of the state, from the tile's first on.
  __device__ __forceinline__ MaskedState(int K, int columns, int32_t dtype) : K(K), columns(columns), dtype(dtype) {}

  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int warp() { return threadIdx.x / 32; }
  static __device__ __forceinline__ int k_of(int i) {
    return VFIRST ? static_cast<int>(threadIdx.x) : i * WARPS + warp();
  }
  static __device__ __forceinline__ int v_of(int i) { return VFIRST ? i : lane(); }
  __device__ __forceinline__ bool inside(int i) const { return k_of(i) < K && v_of(i) < columns; }
  __device__ __forceinline__ int at(int i, int V) const {
    return VFIRST ? v_of(i) * K + k_of(i) : k_of(i) * V + v_of(i);
  }

  __device__ __forceinline__ void load(const void* tile, int V) {
#pragma unroll
    for (int i = 0; i < LOADS; ++i) x[i] = __uint_as_float(inside(i) ? load_bits(tile, at(i, V), dtype) : 0);
  }

  __device__ __forceinline__ void unpack() {
#pragma unroll
    for (int i = 0; i < LOADS; ++i) x[i] = bits_value(__float_as_uint(x[i]), dtype);
  }

  __device__ __forceinline__ void store(void* tile, int V) const {
#pragma unroll
    for (int i = 0; i < LOADS; ++i)
      if (inside(i)) store_rounded(tile, at(i, V), x[i], dtype);
  }

  template <int N>
  __device__ __forceinline__ void read_out(const float* z, float* sums) const {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      float y[LOADS] = {};
#pragma unroll
      for (int i = 0; i < LOADS; ++i) {
        float& sum = y[VFIRST ? i : 0];
        sum = fmaf(x[i], z[j * BK + k_of(i)], sum);
      }
      if constexpr (VFIRST) spread_sums<32, 1, LOADS>(y, lane());
      sums[(warp() * N + j) * BV + lane()] = y[0];
    }
  }

  __device__ __forceinline__ void fold(float decay, const float* k, const float* w, int tokens,
                                       const float* weights = nullptr) {
#pragma unroll
    for (int i = 0; i < LOADS; ++i) x[i] *= decay;
#pragma unroll 1
    for (int t = 0; t < tokens; ++t)
#pragma unroll
      for (int i = 0; i < LOADS; ++i)
        x[i] = fmaf((weights ? weights[t] : 1.0f) * k[t * BK + k_of(i)], w[t * BV + v_of(i)], x[i]);
  }
};

}  // namespace gdn
