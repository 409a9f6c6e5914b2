// Roundings of states that are not the hardware's: bf16 at random, and fp8. The same for host and device, on bit
// patterns.
#pragma once

#include "common.h"

namespace gdn {

#ifdef GDN_DEVICE
#define GDN_SHARED __device__ __forceinline__
#else
#define GDN_SHARED inline
#endif

// ---- stochastic rounding to bf16 --------------------------------------------------------------------------------

// The finaliser of splitmix64.
GDN_SHARED uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// What the random bits of one slot's elements have in common.
GDN_SHARED uint64_t rounding_key(int64_t seed, int64_t slot) {
  const uint64_t odd = 0x9e3779b97f4a7c15ull;
  return mix(mix(static_cast<uint64_t>(seed) + odd) + static_cast<uint64_t>(slot) * odd);
}

// 16 random bits for element (hv, k, v) of a slot, `element` = (hv * K + k) * V + v: a function of seed, slot and
// element alone, whatever the layout and the batch.
GDN_SHARED uint32_t rounding_bits(uint64_t key, uint32_t element) {
  uint32_t x = element ^ static_cast<uint32_t>(key);
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) + static_cast<uint32_t>(key >> 32);
  x = (x ^ (x >> 16)) * 0x846ca68bu;
  x = (x ^ (x >> 15)) * 0x9e3779b1u;
  return x >> 16;
}

// fp32 bits of one of the two bf16 numbers round a number: the farther from zero with the probability of the distance
// from the other. Numbers of bf16 stay, infinities and NaN too.
GDN_SHARED uint32_t round_at_random(uint32_t bits, uint32_t random) {
  if ((bits & 0x7f800000u) == 0x7f800000u) return (bits & 0x007fffffu ? bits | 0x00400000u : bits) & 0xffff0000u;
  return (bits + random) & 0xffff0000u;
}

}  // namespace gdn

#ifdef GDN_DEVICE

namespace gdn {

// ---- fp8: e4m3fn, in software, so that every arch gives the same bits ---------------------------------------------

constexpr int32_t kFP8 = 7;  // a value of DType

struct fp8 {
  uint8_t bits;
};

template <>
struct Number<fp8> {
  static constexpr int32_t code = kFP8;
  using Bits = uint8_t;
  static __device__ __forceinline__ float value(uint32_t bits) {
    const uint32_t size = bits & 0x7f, sign = (bits & 0x80) << 24;
    const float x = size == 0x7f ? __uint_as_float(0x7fc00000u)
                    : size < 8   ? static_cast<float>(size) * 0x1p-9f
                                 : __uint_as_float((size << 20) + (120u << 23));
    return __uint_as_float(__float_as_uint(x) | sign);
  }
  // To nearest, ties to even; saturated at +-448, infinities too.
  static __device__ __forceinline__ fp8 round(float x) {
    const uint32_t all = __float_as_uint(x), sign = all >> 24 & 0x80;
    uint32_t size = all & 0x7fffffff;
    if (size > 0x7f800000u)
      size = 0x7f;
    else if (size >= 0x43e00000u)  // 448
      size = 0x7e;
    else if (size < 0x3c800000u)  // 2^-6: below, steps of 2^-9. 2^14 is the sum's last bit times 2^23.
      size = __float_as_uint(__uint_as_float(size) + 16384.0f) - 0x46800000u;
    else
      size = ((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (120u << 3);
    return {static_cast<uint8_t>(size | sign)};
  }
};

}  // namespace gdn

#endif  // GDN_DEVICE
