// Moving VEC channels at a time between memory and fp32 registers: as one access where they lie next to each other, one
// by one where they do not.
#pragma once

#include "common.h"

namespace gdn {

// x as T without saturation, and its bits.
template <class T>
__device__ __forceinline__ T exact(float x) {
  return Number<T>::round(x);
}
template <>
__device__ __forceinline__ fp16 exact<fp16>(float x) {
  return __float2half_rn(x);
}

template <class T>
__device__ __forceinline__ uint32_t bits_of(T x) {
  return same_bits<typename Number<T>::Bits>(x);
}

// Two of them in a word, in one conversion: of two put together ptxas 12.9 lost the lower for sm_90.
template <class T>
__device__ __forceinline__ uint32_t pair_of(float low, float high) {
  return Number<T>::pack(low, high);
}
template <>
__device__ __forceinline__ uint32_t pair_of<fp16>(float low, float high) {
  return same_bits<uint32_t>(__floats2half2_rn(low, high));
}

// VEC elements that are consecutive in memory, as they are there.
template <class T, int VEC>
struct Pack {
  static constexpr int BYTES = VEC * sizeof(T);
  static_assert(BYTES % 16 == 0 || BYTES == 8 || BYTES == 4 || BYTES == 2);
  uint32_t words[(BYTES + 3) / 4];

  __device__ __forceinline__ void load(const T* p) {
    if constexpr (BYTES % 16 == 0) {
#pragma unroll
      for (int i = 0; i < BYTES / 16; ++i) set_words(i, reinterpret_cast<const uint4*>(p)[i]);
    } else if constexpr (BYTES == 8) {
      const uint64_t x = *reinterpret_cast<const uint64_t*>(p);
      words[0] = static_cast<uint32_t>(x), words[1] = static_cast<uint32_t>(x >> 32);
    } else if constexpr (BYTES == 4) {
      words[0] = *reinterpret_cast<const uint32_t*>(p);
    } else {
      words[0] = *reinterpret_cast<const uint16_t*>(p);
    }
  }
  // Memory that nobody reads again.
  __device__ __forceinline__ void load_once(const T* p) {
#pragma unroll
    for (int i = 0; i < BYTES / 16; ++i) set_words(i, __ldcs(reinterpret_cast<const uint4*>(p) + i));
  }
  __device__ __forceinline__ void set_words(int i, const uint4& x) {
    words[4 * i] = x.x, words[4 * i + 1] = x.y, words[4 * i + 2] = x.z, words[4 * i + 3] = x.w;
  }
  __device__ __forceinline__ void store(T* p) const {
    if constexpr (BYTES % 16 == 0) {
#pragma unroll
      for (int i = 0; i < BYTES; i += 16)
        reinterpret_cast<uint4*>(p)[i / 16] =
            make_uint4(words[i / 4], words[i / 4 + 1], words[i / 4 + 2], words[i / 4 + 3]);
    } else if constexpr (BYTES == 8)
      *reinterpret_cast<uint64_t*>(p) = words[0] | static_cast<uint64_t>(words[1]) << 32;
    else if constexpr (BYTES == 4)
      *reinterpret_cast<uint32_t*>(p) = words[0];
    else
      *reinterpret_cast<uint16_t*>(p) = static_cast<uint16_t>(words[0]);
  }
  __device__ __forceinline__ float at(int i) const {
    if constexpr (sizeof(T) == 4 || VEC == 1)
      return Number<T>::value(words[i]);
    else
      return i % 2 ? Number<T>::high(words[i / 2]) : Number<T>::low(words[i / 2]);
  }
  // Results: rounded, fp16 saturated.
  __device__ __forceinline__ void set(const float (&x)[VEC]) {
    if constexpr (VEC == 1) {
      words[0] = bits_of(Number<T>::round(x[0]));
    } else if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < VEC; ++i) words[i] = __float_as_uint(x[i]);
    } else {
#pragma unroll
      for (int i = 0; i < VEC; i += 2) words[i / 2] = Number<T>::pack(x[i], x[i + 1]);
    }
  }
  // Values that are numbers of T (infinity too).
  __device__ __forceinline__ void set_exact(const float (&x)[VEC]) {
    if constexpr (VEC == 1) {
      words[0] = bits_of(exact<T>(x[0]));
    } else {
#pragma unroll
      for (int i = 0; i < VEC; i += 2) words[i / 2] = pair_of<T>(x[i], x[i + 1]);
    }
  }
};

template <class T, int VEC>
__device__ __forceinline__ void load_pack(const T* p, float (&x)[VEC]) {
  Pack<T, VEC> pack;
  pack.load(p);
#pragma unroll
  for (int c = 0; c < VEC; ++c) x[c] = pack.at(c);
}

// x, computed now: the compiler would rather copy a pack whose registers are loaded again.
__device__ __forceinline__ float settled(float x) {
#ifdef __CUDACC_RTC__
  asm volatile("" : "+f"(x));
#endif
  return x;
}

// at + step, computed now: the compiler would rather keep the address of every token of an unrolled loop in registers.
__device__ __forceinline__ int64_t advance(int64_t at, int64_t step) {
  at += step;
#ifdef __CUDACC_RTC__
  asm volatile("" : "+l"(at));
#endif
  return at;
}

// Calls f(at, i, c) for N columns i of VEC channels c with any strides.
template <int VEC, int N, class F>
__device__ __forceinline__ void each_strided(int64_t at, int64_t stride_c, int64_t stride_i, F f) {
#pragma unroll
  for (int c = 0; c < VEC; ++c) {
    int64_t column = at;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      f(column, i, c);
      column = advance(column, stride_i);
    }
    at = advance(at, stride_c);
  }
}

// x[i][c] of T or, if fp32, of float.
template <class T, int VEC, int N>
__device__ __forceinline__ void load_strided(const void* p, int64_t at, int64_t stride_c, int64_t stride_i, bool fp32,
                                             float (&x)[N][VEC]) {
  using Bits = typename Number<T>::Bits;
  const auto* wide = static_cast<const float*>(p);
  const auto* narrow = static_cast<const Bits*>(p);
  if (sizeof(T) == 4 || fp32)
    each_strided<VEC, N>(at, stride_c, stride_i, [&](int64_t e, int i, int c) { x[i][c] = wide[e]; });
  else
    each_strided<VEC, N>(at, stride_c, stride_i,
                         [&](int64_t e, int i, int c) { x[i][c] = Number<T>::value(narrow[e]); });
}

template <class T, int VEC, int N>
__device__ __forceinline__ void store_strided(void* p, int64_t at, int64_t stride_c, int64_t stride_i, bool fp32,
                                              const float (&x)[N][VEC]) {
  auto* wide = static_cast<float*>(p);
  auto* narrow = static_cast<T*>(p);
  if (sizeof(T) == 4 || fp32)
    each_strided<VEC, N>(at, stride_c, stride_i, [&](int64_t e, int i, int c) { wide[e] = x[i][c]; });
  else
    each_strided<VEC, N>(at, stride_c, stride_i, [&](int64_t e, int i, int c) { narrow[e] = exact<T>(x[i][c]); });
}

// x[i][c] = p[c * N + i]: N columns of VEC channels, all contiguous, as N packs.
template <class T, int VEC, int N>
__device__ __forceinline__ void load_lines(const T* p, float (&x)[N][VEC]) {
  Pack<T, VEC> packs[N];
#pragma unroll
  for (int j = 0; j < N; ++j) packs[j].load(p + j * VEC);
#pragma unroll
  for (int e = 0; e < N * VEC; ++e) x[e % N][e / N] = packs[e / VEC].at(e % VEC);
}

template <class T, int VEC, int N>
__device__ __forceinline__ void store_lines(T* p, const float (&x)[N][VEC]) {
#pragma unroll
  for (int j = 0; j < N; ++j) {
    float values[VEC];
#pragma unroll
    for (int i = 0; i < VEC; ++i) values[i] = x[(j * VEC + i) % N][(j * VEC + i) / N];
    Pack<T, VEC> pack;
    pack.set_exact(values);
    pack.store(p + j * VEC);
  }
}

}  // namespace gdn
