// y = x * rsqrt(sum(x^2) + eps) over the last dimension. Sums in fp32, one rounding at the store.
//
// x [n0, n1, n2, D] with any strides but the last; y contiguous. ALIGNED (rows of 16-byte packs, D up to 256): a lane
// holds 8 columns of U rows, all asked for before the first is looked at, 2^lane_bits lanes a row. Other variants give
// a warp a row, element by element, and read it twice, the second time from the cache.
//
// Compiles for the CPU with tests/emulated_warp.h.
#include "l2norm.h"
#include "packs.h"
#include "warp.h"

namespace gdn {

template <class T, int THREADS, int U>
__device__ __forceinline__ void norm_lanes(const L2normArgs& a) {
  const uint32_t R = static_cast<uint32_t>(a.rows.R), rows = THREADS >> a.lane_bits;
  const uint32_t first = blockIdx.x * rows * U + (threadIdx.x >> a.lane_bits);
  const int column = 8 * (threadIdx.x & ((1 << a.lane_bits) - 1));
  Pack<T, 8> packs[U] = {};
#pragma unroll
  for (int u = 0; u < U; ++u) {
    const uint32_t row = first + u * rows;
    if (row < R && column < a.D) packs[u].load_once(static_cast<const T*>(a.x) + RowOffsets(a.rows, row).x + column);
  }
#pragma unroll
  for (int u = 0; u < U; ++u) {
    const uint32_t row = first + u * rows;
    float x[8], sum = 0;
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] = packs[u].at(e), sum = fmaf(x[e], x[e], sum);
    const float factor = rsqrtf(row_sum(sum, a.lane_bits) + a.eps);
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] *= factor;
    packs[u].set(x);
    if (row < R && column < a.D) packs[u].store(static_cast<T*>(a.y) + static_cast<int64_t>(row) * a.D + column);
  }
}

template <class T, int THREADS>
__device__ __forceinline__ void norm_rows(const L2normArgs& a) {
  using Bits = typename Number<T>::Bits;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= a.rows.R) return;
  const Bits* x = static_cast<const Bits*>(a.x) + RowOffsets(a.rows, row).x;
  T* y = static_cast<T*>(a.y) + row * a.D;
  float sum = 0;
  for (int d = lane; d < a.D; d += 32) sum = fmaf(Number<T>::value(x[d]), Number<T>::value(x[d]), sum);
  const float factor = rsqrtf(warp_sum(sum) + a.eps);
  for (int d = lane; d < a.D; d += 32) y[d] = Number<T>::round(Number<T>::value(x[d]) * factor);
}

template <class T, bool ALIGNED, int THREADS, int U>
__device__ __forceinline__ void l2norm(const L2normArgs& a) {
  if constexpr (ALIGNED)
    norm_lanes<T, THREADS, U>(a);
  else
    norm_rows<T, THREADS>(a);
}

}  // namespace gdn

#define GDN_KERNEL(symbol, T, ALIGNED, THREADS, U)                                                          \
  extern "C" __global__ void __launch_bounds__(THREADS) symbol(const __grid_constant__ gdn::L2normArgs a) { \
    gdn::l2norm<T, ALIGNED, THREADS, U>(a);                                                                 \
  }
GDN_VARIANTS(GDN_KERNEL)
