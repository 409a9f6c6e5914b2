// y = fp8(rmsnorm(x) * weight * act(z) / scale), or with the gate before the norm; see triton_src/gated_rmsnorm.py. The
// scale is one number for all of y, or max |.| / 448 of every quant_group columns, which is stored. Saturating, one
// rounding (hf_rounding adds those of the unfused modules, the last one before the division included).
//
// ALIGNED: D and quant_group are 2^n up to 256 and rows lie on 16 bytes: a lane holds 8 columns in registers, D / 8
// lanes a row, a warp several rows. Other variants give a warp a row (of one group) and compute it three times, from
// the cache.
//
// Compiles for the CPU with tests/emulated_warp.h.
#include "gated_norm.h"
#include "gated_rmsnorm_fp8.h"
#include "warp.h"

namespace gdn {

template <class T>
__device__ __forceinline__ float result(const GatedRmsnormFp8Args& a, float x, float factor, float w, float gate) {
  return normed(x, factor, w, gate, Number<T>::code, a.hf_rounding, a.weight_fp32);
}

// Offsets of row q of x and z.
struct Rows {
  int64_t x, z;
  __device__ __forceinline__ Rows(const GatedRmsnormFp8Args& a, int64_t row) {
    int64_t i_0 = row, i_1 = 0, i_2 = 0;
    if (a.n1 * a.n2 != 1) {
      const int64_t next = row / a.n2;
      i_2 = row - next * a.n2, i_0 = next / a.n1, i_1 = next - i_0 * a.n1;
    }
    x = i_0 * a.x_strides[0] + i_1 * a.x_strides[1] + i_2 * a.x_strides[2];
    z = i_0 * a.z_strides[0] + i_1 * a.z_strides[1] + i_2 * a.z_strides[2];
  }
};

// ---- 8 columns a lane ------------------------------------------------------------------------------------------

template <class T>
__device__ __forceinline__ void load8(const void* p, int64_t at, float (&x)[8]) {
  const uint4* from = reinterpret_cast<const uint4*>(static_cast<const T*>(p) + at);
#pragma unroll
  for (int j = 0; j < static_cast<int>(sizeof(T)) / 2; ++j) {
    const uint4 v = from[j];
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 4)
        x[4 * j + i] = __uint_as_float(words[i]);
      else
        x[2 * i] = Number<T>::low(words[i]), x[2 * i + 1] = Number<T>::high(words[i]);
    }
  }
}

template <class T, int THREADS>
__device__ __forceinline__ void norm_lanes(const GatedRmsnormFp8Args& a) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (THREADS / a.lanes) + threadIdx.x / a.lanes;
  const int lane = threadIdx.x % a.lanes;
  const int64_t row = a.G == 1 ? item : item / a.G;
  const int column = static_cast<int>(item - row * a.G) * a.D + lane * 8;
  float x[8] = {}, gate[8] = {}, w[8], sum = 0;
  if (row < a.R) {
    const Rows at(a, row);
    load8<T>(a.x, at.x + column, x);
    if (a.activation >= 0) load8<T>(a.z, at.z + column, gate);
  }
  if (a.weight_fp32)
    load8<float>(a.weight, column, w);
  else
    load8<T>(a.weight, column, w);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    gate[e] = gate_value(x[e], gate[e], a.activation);
    if (a.gate_first) x[e] *= gate[e], gate[e] = 1.0f;
    sum = fmaf(x[e], x[e], sum);
  }
#pragma unroll 1
  for (int far = a.lanes / 2; far > 0; far /= 2) sum += __shfl_xor_sync(kAll, sum, far);
  const float factor = rsqrtf(sum / static_cast<float>(a.D) + a.eps);
  float largest = 0;
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    x[e] = result<T>(a, x[e], factor, w[e], gate[e]);
    largest = fmaxf(largest, fabsf(x[e]));
  }
  float scale;
  if (a.out_scale != nullptr) {
    scale = *a.out_scale;
  } else {
#pragma unroll 1
    for (int far = a.quant_lanes / 2; far > 0; far /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, far));
    scale = fmaxf(largest, kSmallestMaximum) / kFp8Max;
  }
  if (row >= a.R) return;
  uint64_t bytes = 0;
#pragma unroll
  for (int e = 0; e < 8; ++e) bytes |= static_cast<uint64_t>(to_fp8(x[e] / scale)) << (8 * e);
  const int64_t at = row * a.G * a.D + column;
  *reinterpret_cast<uint64_t*>(a.y + at) = bytes;
  if (a.scales != nullptr && lane % a.quant_lanes == 0) a.scales[at / a.quant_group] = scale;
}

// ---- a warp a row ----------------------------------------------------------------------------------------------

template <class T, int THREADS>
__device__ __forceinline__ void norm_rows(const GatedRmsnormFp8Args& a) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (item >= a.R * a.G) return;
  const int64_t row = item / a.G, first = (item - row * a.G) * a.D;
  const Rows at(a, row);
  using Bits = typename Number<T>::Bits;
  const Bits* x = static_cast<const Bits*>(a.x) + at.x + first;
  const Bits* z = static_cast<const Bits*>(a.z) + at.z + first;
  auto gate = [&](int d) { return gate_value(Number<T>::value(x[d]), Number<T>::value(z[d]), a.activation); };
  auto input = [&](int d) { return Number<T>::value(x[d]) * (a.gate_first ? gate(d) : 1.0f); };

  float sum = 0;
  for (int d = lane; d < a.D; d += 32) sum = fmaf(input(d), input(d), sum);
  sum = warp_sum(sum);
  const float factor = rsqrtf(sum / static_cast<float>(a.D) + a.eps);
  auto value = [&](int d) {
    const float w = a.weight_fp32 ? static_cast<const float*>(a.weight)[first + d]
                                  : Number<T>::value(static_cast<const Bits*>(a.weight)[first + d]);
    return result<T>(a, input(d), factor, w, a.gate_first ? 1.0f : gate(d));
  };
#pragma unroll 1
  for (int begin = 0; begin < a.D; begin += a.quant_group) {
    float scale;
    if (a.out_scale != nullptr) {
      scale = *a.out_scale;
    } else {
      float largest = 0;
      for (int d = begin + lane; d < begin + a.quant_group; d += 32) largest = fmaxf(largest, fabsf(value(d)));
#pragma unroll
      for (int far = 16; far > 0; far /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, far));
      scale = fmaxf(largest, kSmallestMaximum) / kFp8Max;
    }
    for (int d = begin + lane; d < begin + a.quant_group; d += 32)
      a.y[item * a.D + d] = static_cast<uint8_t>(to_fp8(value(d) / scale));
    if (a.scales != nullptr && lane == 0) a.scales[(item * a.D + begin) / a.quant_group] = scale;
  }
}

template <class T, bool ALIGNED, int THREADS>
__device__ __forceinline__ void gated_rmsnorm_fp8(const GatedRmsnormFp8Args& a) {
  if constexpr (ALIGNED)
    norm_lanes<T, THREADS>(a);
  else
    norm_rows<T, THREADS>(a);
}

}  // namespace gdn

#define GDN_KERNEL(symbol, T, ALIGNED, THREADS, WARPS)                                                               \
  extern "C" __global__ void __launch_bounds__(THREADS) symbol(const __grid_constant__ gdn::GatedRmsnormFp8Args a) { \
    gdn::gated_rmsnorm_fp8<T, ALIGNED, THREADS>(a);                                                                  \
  }
GDN_VARIANTS(GDN_KERNEL)
