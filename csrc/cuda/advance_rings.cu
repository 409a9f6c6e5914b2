// lengths[slot] of every live row after a step (next_length): a thread a row.
//
// Compiles for the CPU with tests/emulated_warp.h.
#include "advance_rings.h"

namespace gdn {

template <int THREADS>
__device__ __forceinline__ void advance_rings(const AdvanceRingsArgs& a) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (n >= a.N) return;
  const int64_t slot = load_index(a.read, n);
  if (slot < a.min_slot || slot >= a.slots) return;
  int64_t tokens = a.T;
  if (a.cu_seqlens.words) {
    const int64_t begin = load_index(a.cu_seqlens, n), end = load_index(a.cu_seqlens, n + 1);
    tokens = max(min(max(end, int64_t{0}), a.T) - min(max(begin, int64_t{0}), a.T), int64_t{0});
  }
  const int64_t m = load_index(a.lengths, slot);
  const int64_t next = next_length(m, tokens, a.accepted.words ? load_index(a.accepted, n) : tokens, a.R);
  if (next == m) return;
  const_cast<int32_t*>(a.lengths.low)[slot * a.lengths.stride] = static_cast<int32_t>(next);  // 0 .. R: high is 0
}

}  // namespace gdn

#define GDN_KERNEL(symbol, THREADS)                                                                               \
  extern "C" __global__ void __launch_bounds__(THREADS) symbol(const __grid_constant__ gdn::AdvanceRingsArgs a) { \
    gdn::advance_rings<THREADS>(a);                                                                               \
  }
GDN_VARIANTS(GDN_KERNEL)
