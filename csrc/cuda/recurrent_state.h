// Which lane of a warp holds what of a state, and moving it between memory and registers (see fused_recurrent.cu).
#pragma once

#include "rounding.h"
#include "warp.h"

namespace gdn {

// ---- which lane holds what -------------------------------------------------------------------------------------

template <class S, bool VFIRST, int BK, int BV>
struct Lanes {
  static constexpr bool V_FIRST = VFIRST;
  static constexpr int VEC = sizeof(S) == 4 ? 4 : 8;
  static constexpr int LV = !VFIRST ? BV / VEC : BK / VEC >= 32 ? 1 : 32 * VEC / BK;  // lanes along V
  static constexpr int LK = 32 / LV;                                                  // lanes along K
  static constexpr int NV = BV / LV, NK = BK / LK;                                    // elements of a lane
  static constexpr int NL = NV * NK / VEC;                                            // loads of a lane
  static constexpr int GK = VFIRST ? VEC : NK < 8 ? NK : 8;                           // consecutive ones along K
  static constexpr int STEP = VFIRST ? 1 : LV;                                        // lanes apart along K
  static_assert(LV * NV == BV && LK * NK == BK && NV * 2 <= LK, "BV does not suit BK");

  int k, v;  // coordinates of this lane

  __device__ __forceinline__ explicit Lanes(int lane)
      : k(VFIRST ? lane % LK : lane / LV), v(VFIRST ? lane / LK : lane % LV) {}

  static __device__ __forceinline__ int lane(int k, int v) { return VFIRST ? v * LK + k : k * LV + v; }
  // Index along K of the lane's element i, and along V, from the warp's first column, of its column i.
  __device__ __forceinline__ int k_of(int i) const { return (i / GK * LK + k) * GK + i % GK; }
  __device__ __forceinline__ int v_of(int i) const { return VFIRST ? i * LV + v : v * VEC + i; }
  // Element e of load j: its index along K and along V.
  __device__ __forceinline__ int k_of(int j, int e) const { return VFIRST ? k_of(j % (NK / VEC) * VEC + e) : k_of(j); }
  __device__ __forceinline__ int v_of(int j, int e) const { return VFIRST ? v_of(j / (NK / VEC)) : v_of(e); }

  // Sums of x[0 .. N) over the lanes along K: lane k is left with number k * N / LK.
  template <int N>
  __device__ __forceinline__ float sum(float (&x)[N]) const {
    spread_sums<LK, STEP, N>(x, k);
    return x[0];
  }

  // The sum of one number over the lanes along K, in each of them.
  static __device__ __forceinline__ float sum(float x) {
#pragma unroll
    for (int far = LK / 2; far > 0; far /= 2) x += __shfl_xor_sync(kAll, x, far * STEP);
    return x;
  }
};

// ---- states ----------------------------------------------------------------------------------------------------

// A number of a state of any dtype: as it is in memory, which does not make the load wait, its value, and to memory.
__device__ __forceinline__ uint32_t state_bits(const void* p, int64_t i, int32_t dtype) {
  return dtype == kFP8 ? static_cast<const uint8_t*>(p)[i] : load_bits(p, i, dtype);
}
__device__ __forceinline__ float state_value(uint32_t bits, int32_t dtype) {
  return dtype == kFP8 ? Number<fp8>::value(bits) : bits_value(bits, dtype);
}
__device__ __forceinline__ void store_state(void* p, int64_t i, float x, int32_t dtype) {
  if (dtype == kFP8)
    static_cast<fp8*>(p)[i] = Number<fp8>::round(x);
  else
    store_rounded(p, i, x, dtype);
}
__device__ __forceinline__ int size_of(int32_t dtype) { return dtype == kFP32 ? 4 : dtype == kFP8 ? 1 : 2; }

// The numbers of 16 bytes of a state.
template <class S, int VEC>
__device__ __forceinline__ void unpack_16_bytes(const uint4& bits, float (&x)[VEC]) {
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int e = 0; e < VEC; ++e) {
    if constexpr (VEC == 4)
      x[e] = __uint_as_float(words[e]);
    else
      x[e] = e % 2 ? Number<S>::high(words[e / 2]) : Number<S>::low(words[e / 2]);
  }
}

// 16 bytes on their way to shared memory, ONCE: that nobody reads again; 4 bytes; and until all that this thread has
// asked for are there.
template <bool ONCE>
__device__ __forceinline__ void copy_16_bytes(void* to, const void* from) {
#ifdef __CUDACC_RTC__
  const uint32_t at = shared_address(to);
  uint64_t once;
  if constexpr (ONCE) {
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "l"(once)
                 : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
  }
#else
  memcpy(to, from, 16);
#endif
}
__device__ __forceinline__ void copy_4_bytes(void* to, const void* from) {
#ifdef __CUDACC_RTC__
  const uint32_t at = shared_address(to);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
#else
  memcpy(to, from, 4);
#endif
}
__device__ __forceinline__ void wait_for_copies() {
#ifdef __CUDACC_RTC__
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// VEC numbers to memory, 4 or 8 at a time.
template <class W, int VEC>
__device__ __forceinline__ void store_numbers(W* p, const float (&y)[VEC]) {
  using N = Number<W>;
  auto* to = reinterpret_cast<uint4*>(p);
  if constexpr (sizeof(W) == 4) {
#pragma unroll
    for (int e = 0; e < VEC; e += 4)
      __stcs(to + e / 4, make_uint4(__float_as_uint(y[e]), __float_as_uint(y[e + 1]), __float_as_uint(y[e + 2]),
                                    __float_as_uint(y[e + 3])));
  } else if constexpr (VEC == 4) {
    *reinterpret_cast<uint2*>(p) = make_uint2(N::pack(y[0], y[1]), N::pack(y[2], y[3]));
  } else {
    __stcs(to, make_uint4(N::pack(y[0], y[1]), N::pack(y[2], y[3]), N::pack(y[4], y[5]), N::pack(y[6], y[7])));
  }
}

// A lane's part of a head's state, in the order of its loads. Not ALIGNED: moved one number at a time, of any dtype.
template <class S, class L, bool ALIGNED>
struct State {
  static constexpr int VEC = L::VEC;
  float x[L::NL][VEC];
  uint4 bits[L::NL];  // as loaded, not yet looked at; in x where not ALIGNED

  __device__ __forceinline__ float& at(int v, int k) {
    return L::V_FIRST ? x[v * (L::NK / VEC) + k / VEC][k % VEC] : x[k][v];
  }

  static __device__ __forceinline__ int offset(int k, int v, int K, int V) {
    return L::V_FIRST ? v * K + k : k * V + v;
  }
  // Of load j, from load 0 of the same lane.
  static __device__ __forceinline__ int step(int j, int K, int V) {
    constexpr int C = L::NK / VEC;
    return L::V_FIRST ? j / C * L::LV * K + j % C * L::LK * VEC : (j / L::GK * L::LK * L::GK + j % L::GK) * V;
  }

  // `p`: states, of which the head's begins at element `begin`. Stays as it is in memory until unpack().
  __device__ __forceinline__ void load(const void* p, int64_t begin, int32_t dtype, const L& lanes, int v0, int K,
                                       int V) {
    begin += offset(lanes.k_of(0), v0 + lanes.v_of(0), K, V);
#pragma unroll
    for (int j = 0; j < L::NL; ++j) {
      if constexpr (ALIGNED) {
        bits[j] = __ldcs(reinterpret_cast<const uint4*>(static_cast<const S*>(p) + begin + step(j, K, V)));
      } else {
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
          const bool inside = lanes.k_of(j, e) < K && v0 + lanes.v_of(j, e) < V;
          x[j][e] = __uint_as_float(inside ? state_bits(p, begin + step(j, K, V) + e, dtype) : 0);
        }
      }
    }
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int j = 0; j < L::NL; ++j) {
      bits[j] = make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int e = 0; e < VEC; ++e) x[j][e] = 0;
    }
  }

  // In units of `scale` where not ALIGNED.
  __device__ __forceinline__ void unpack(int32_t dtype, float scale) {
#pragma unroll
    for (int j = 0; j < L::NL; ++j) {
      if constexpr (ALIGNED) {
        unpack_16_bytes<S>(bits[j], x[j]);
      } else {
#pragma unroll
        for (int e = 0; e < VEC; ++e) x[j][e] = scale * state_value(__float_as_uint(x[j][e]), dtype);
      }
    }
  }

  // ALIGNED
  template <class W>
  __device__ __forceinline__ void store(W* p, const L& lanes, int v0, int K, int V) const {
    auto* first = p + offset(lanes.k_of(0), v0 + lanes.v_of(0), K, V);
#pragma unroll
    for (int j = 0; j < L::NL; ++j) store_numbers(first + step(j, K, V), x[j]);
  }

  // Number by number, so to any dtype: f(x, k, v) for x.
  template <class F>
  __device__ __forceinline__ void store_each(void* p, int64_t begin, int32_t dtype, const L& lanes, int v0, int K,
                                             int V, F f) const {
    begin += offset(lanes.k_of(0), v0 + lanes.v_of(0), K, V);
#pragma unroll
    for (int j = 0; j < L::NL; ++j)
#pragma unroll
      for (int e = 0; e < VEC; ++e) {
        const int k = lanes.k_of(j, e), v = v0 + lanes.v_of(j, e);
        if (k < K && v < V) store_state(p, begin + step(j, K, V) + e, f(x[j][e], k, v), dtype);
      }
  }
};

}  // namespace gdn
