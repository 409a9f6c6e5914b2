// What CUDA C++ kernels share: argument types, which the host compiles too, and device functions, which
// tests/emulated_warp.h compiles for the host to run kernels without a GPU.
#pragma once

#ifdef __CUDACC_RTC__
using int32_t = int;
using uint32_t = unsigned int;
using uint16_t = unsigned short;
using uint8_t = unsigned char;
using int64_t = long long;
using uint64_t = unsigned long long;
#define GDN_DEVICE
#else
#include <cstdint>
#endif

namespace gdn {

// Activation dtypes: values of DType.
constexpr int32_t kBF16 = 0, kFP16 = 1, kFP32 = 2;

// An index tensor as 32-bit words: element i is at word i * stride and is `words` (1 or 2) long; 0: not given.
struct IndexArg {
  const int32_t* low;
  const int32_t* high;  // low + words - 1
  int64_t stride;
  int32_t words;
};

// The same for two dimensions: element (i, j) is at word i * stride_i + j * stride_j.
struct TableArg {
  const int32_t* low;
  const int32_t* high;
  int64_t stride_i, stride_j;
  int64_t columns;
  int32_t words;
};

// Rows of a tensor [B, T, heads, ...] with any strides: row r of batch row or packed token r, then token t of it.
struct RowsArg {
  const void* data;
  int64_t stride_r;  // of a batch row, or of a token where sequences are packed
  int64_t stride_t;
  int64_t stride_h;
};

// A gate [B, T, HV], or [B, T, H, HV / H] as an interleaved projection has it; not given without data. Value head hv is
// at hv / (HV / H) * stride_g + hv % (HV / H) * at.stride_h.
struct GateArg {
  RowsArg at;
  int64_t stride_g;  // of a key head's group: HV / H * at.stride_h where value heads lie evenly
  int32_t dtype;
};

// Division of x in [0, 2^31) by d in [1, 2^31): x / d = x * multiplier >> shift, with multiplier =
// floor(2^shift / d) + 1 and shift = 31 + ceil(log2 d).
struct Divisor {
  uint32_t multiplier;
  int32_t shift;
};

#ifdef GDN_DEVICE
__device__ __forceinline__
#else
inline
#endif
    uint32_t divide(uint32_t x, const Divisor& d) {
  return static_cast<uint32_t>(static_cast<uint64_t>(x) * d.multiplier >> d.shift);
}

}  // namespace gdn

#ifdef GDN_DEVICE

#ifdef __CUDACC_RTC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace gdn {

using bf16 = __nv_bfloat16;
using fp16 = __half;

// ---- index tensors ----------------------------------------------------------------------------------------------

// Loads that stay where they are written, so that several are under way before the first is looked at.
__device__ __forceinline__ uint32_t load_word(const void* p) {
#ifdef __CUDACC_RTC__
  uint32_t x;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(x) : "l"(p));
  return x;
#else
  return *static_cast<const uint32_t*>(p);
#endif
}

__device__ __forceinline__ uint32_t load_byte(const void* p) {
#ifdef __CUDACC_RTC__
  uint32_t x;
  asm volatile("ld.global.u8 %0, [%1];" : "=r"(x) : "l"(p));
  return x;
#else
  return *static_cast<const uint8_t*>(p);
#endif
}

#ifdef __CUDACC_RTC__
// Where instructions find what p points to in shared memory.
__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
#endif

// Asks for the 128 bytes round p to be brought to L2.
__device__ __forceinline__ void prefetch_line(const void* p) {
#ifdef __CUDACC_RTC__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

// An index as it is in memory, and its value.
struct IndexBits {
  uint32_t low, high;
};

// Element i, or word `at` of row i of a table.
__device__ __forceinline__ IndexBits index_bits(const IndexArg& t, uint32_t i, int64_t at = 0) {
  return {load_word(t.low + i * t.stride + at), load_word(t.high + i * t.stride + at)};
}

__device__ __forceinline__ int64_t index_value(IndexBits x, int32_t words) {
  const uint64_t high = words == 2 ? x.high : static_cast<uint32_t>(static_cast<int32_t>(x.low) >> 31);
  return static_cast<int64_t>(high << 32 | x.low);
}

__device__ __forceinline__ int64_t load_index(const IndexArg& t, int64_t i) {
  return index_value({load_word(t.low + i * t.stride), load_word(t.high + i * t.stride)}, t.words);
}

__device__ __forceinline__ int64_t load_index(const TableArg& t, int64_t i, int64_t j) {
  const int64_t at = i * t.stride_i + j * t.stride_j;
  return index_value({load_word(t.low + at), load_word(t.high + at)}, t.words);
}

// Entry of cu_seqlens, clamped to [0, T].
__device__ __forceinline__ int32_t bound_value(IndexBits x, int32_t words, int32_t T) {
  const int64_t value = index_value(x, words);
  return value < 0 ? 0 : value > T ? T : static_cast<int32_t>(value);
}

// ---- numbers ----------------------------------------------------------------------------------------------------

// The bits of x. Not a reference cast: compilers take those to point at something else (NVRTC 12.9 dropped half of a
// word).
template <class B, class X>
__device__ __forceinline__ B same_bits(const X& x) {
  static_assert(sizeof(B) == sizeof(X));
  B bits;
  memcpy(&bits, &x, sizeof(B));
  return bits;
}

// fp16 saturates at its largest finite value instead of becoming infinite; NaN stays NaN.
__device__ __forceinline__ float saturated(float x) { return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x; }

template <class T>
struct Number;

template <>
struct Number<float> {
  static constexpr int32_t code = kFP32;
  using Bits = uint32_t;
  static __device__ __forceinline__ float value(uint32_t bits) { return __uint_as_float(bits); }
  static __device__ __forceinline__ float round(float x) { return x; }
};

template <>
struct Number<bf16> {
  static constexpr int32_t code = kBF16;
  using Bits = uint16_t;
  static __device__ __forceinline__ float value(uint32_t bits) { return __uint_as_float(bits << 16); }
  static __device__ __forceinline__ bf16 round(float x) { return __float2bfloat16_rn(x); }
  static __device__ __forceinline__ float low(uint32_t pair) { return __uint_as_float(pair << 16); }
  static __device__ __forceinline__ float high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    const __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
    return same_bits<uint32_t>(x);
  }
};

template <>
struct Number<fp16> {
  static constexpr int32_t code = kFP16;
  using Bits = uint16_t;
  static __device__ __forceinline__ float value(uint32_t bits) { return low(bits); }
  static __device__ __forceinline__ fp16 round(float x) { return __float2half_rn(saturated(x)); }
  static __device__ __forceinline__ float low(uint32_t pair) {
    return __half2float(__ushort_as_half(static_cast<uint16_t>(pair)));
  }
  static __device__ __forceinline__ float high(uint32_t pair) { return low(pair >> 16); }
  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    const __half2 x = __floats2half2_rn(saturated(low), saturated(high));
    return same_bits<uint32_t>(x);
  }
};

// 1 / (1 + exp(-x)) of two approximations, each within 2 ulp; not of denormals, which neither argument nor result
// needs.
__device__ __forceinline__ float sigmoid(float x) {
#ifdef __CUDACC_RTC__
  float e, y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -1.4426950408889634f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + e));
  return y;
#else
  return 1.0f / (1.0f + expf(-x));
#endif
}

// ---- activations of any dtype: the branches are the same for a whole launch -------------------------------------

// Element i as it is in memory: looking at it later does not make the load wait.
__device__ __forceinline__ uint32_t load_bits(const void* p, int64_t i, int32_t dtype) {
  return dtype == kFP32 ? static_cast<const uint32_t*>(p)[i] : static_cast<const uint16_t*>(p)[i];
}

__device__ __forceinline__ float bits_value(uint32_t bits, int32_t dtype) {
  return dtype == kBF16   ? Number<bf16>::value(bits)
         : dtype == kFP16 ? Number<fp16>::value(bits)
                          : __uint_as_float(bits);
}

__device__ __forceinline__ void store_rounded(void* p, int64_t i, float x, int32_t dtype) {
  if (dtype == kBF16)
    static_cast<bf16*>(p)[i] = Number<bf16>::round(x);
  else if (dtype == kFP16)
    static_cast<fp16*>(p)[i] = Number<fp16>::round(x);
  else
    static_cast<float*>(p)[i] = x;
}

}  // namespace gdn

#endif  // GDN_DEVICE
