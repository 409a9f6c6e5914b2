// qkv [T, D] = q | k | v, z [T, HV, V], b and a [T, HV] from rows of projections, in one launch.
//
// A row is cut into items: units of q, k, v and z, as large as its alignment allows (16 bytes in models), then the
// elements of b and a. Threads next to each other take items next to each other, across rows, so that small models fill
// blocks too. Both orders of a projection are one rule: part i of a segment is at base + i / inner * group + i % inner.
//
// Compiles for the CPU with tests/emulated_warp.h.
#include "split_qkvzba.h"

namespace gdn {

template <class Unit, int THREADS, int U>
__device__ __forceinline__ void split(const SplitQkvzbaArgs& a) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (THREADS * U), t0 = first / a.ends[5];
  const uint32_t rest = static_cast<uint32_t>(first - t0 * a.ends[5]) + threadIdx.x;
  Unit x[U];
  Unit* to[U];
#pragma unroll
  for (int u = 0; u < U; ++u) {
    const uint32_t item = rest + u * THREADS, row = divide(item, a.by_token);
    const int32_t i = static_cast<int32_t>(item - row * a.ends[5]);
    const int64_t t = t0 + row;
    to[u] = nullptr;
    if (t >= a.T) continue;
    int s = 0;
#pragma unroll
    for (int e = 0; e < 5; ++e) s += i >= a.ends[e];
    const SegmentArg& segment = a.segments[s];
    const int32_t part = i - (s ? a.ends[s - 1] : 0);
    const int32_t group = static_cast<int32_t>(divide(part, segment.by_inner));
    const int32_t column = segment.base + group * segment.group + part - group * segment.inner;
    if (s < 4) {
      x[u] = reinterpret_cast<const Unit*>(static_cast<const char*>(a.mixed) + t * a.mixed_stride)[column];
      to[u] = s < 3 ? static_cast<Unit*>(a.qkv) + t * a.ends[2] + i
                    : static_cast<Unit*>(a.z) + t * (a.ends[3] - a.ends[2]) + part;
    } else {
      const char* from = static_cast<const char*>(a.ba) + t * a.ba_stride;
      void* gates = s == 4 ? a.b : a.a;
      const int64_t at = t * (a.ends[5] - a.ends[4]) + part;
      if (a.gate == 4)
        static_cast<uint32_t*>(gates)[at] = reinterpret_cast<const uint32_t*>(from)[column];
      else
        static_cast<uint16_t*>(gates)[at] = reinterpret_cast<const uint16_t*>(from)[column];
    }
  }
#pragma unroll
  for (int u = 0; u < U; ++u)
    if (to[u] != nullptr) *to[u] = x[u];
}

template <int THREADS, int U>
__device__ __forceinline__ void split_qkvzba(const SplitQkvzbaArgs& a) {
  switch (a.unit) {
    case 16: return split<uint4, THREADS, U>(a);
    case 8: return split<uint64_t, THREADS, U>(a);
    case 4: return split<uint32_t, THREADS, U>(a);
    default: return split<uint16_t, THREADS, U>(a);
  }
}

}  // namespace gdn

#define GDN_KERNEL(symbol, THREADS, U)                                                                           \
  extern "C" __global__ void __launch_bounds__(THREADS) symbol(const __grid_constant__ gdn::SplitQkvzbaArgs a) { \
    gdn::split_qkvzba<THREADS, U>(a);                                                                            \
  }
GDN_VARIANTS(GDN_KERNEL)
