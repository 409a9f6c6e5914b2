// y = rmsnorm(x) * weight * act(z), or rmsnorm(x * act(z)) * weight. Sums in fp32, one rounding at the store (fp16
// saturates; hf_rounding adds the roundings of the RMSNormGated modules of Hugging Face transformers). Where x is zero
// y is, whatever z holds.
//
// x, z [n0, n1, n2, G * D]: G groups of D columns, each normalised alone; any strides but the last, which is 1. y
// contiguous. FP8: y is divided by one number, or by max |.| / 448 of every quant_group columns, which is stored.
//
// ALIGNED (rows of 16-byte packs, D up to 256): a lane holds 8 columns, 2^lane_bits lanes a row. Blocks take several
// tiles of rows, and ask for the next one's x and z before they look at this one's, so that BLOCKS * THREADS loads of
// each are always under way on a multiprocessor. Other variants give a warp a row, element by element, and compute it
// several times, from the cache.
//
// Compiles for the CPU with tests/emulated_warp.h.
#include "gated_rmsnorm.h"
#include "overlap.h"
#include "packs.h"
#include "warp.h"

namespace gdn {

__device__ __forceinline__ float scale_of(float largest) { return fmaxf(largest, kSmallestMaximum) / kFp8Max; }

// ---- 8 columns a lane ------------------------------------------------------------------------------------------

// Stores 8 columns from `at` on, of which `lane` of a row has the numbers y.
template <class T>
__device__ __forceinline__ void store_fp8(const GatedRmsnormArgs& a, uint32_t row, int lane, bool live,
                                          const float (&y)[8]) {
  float scale;
  if (a.out_scale != nullptr) {
    scale = *a.out_scale;
  } else {
    float largest = 0;
#pragma unroll
    for (int e = 0; e < 8; ++e) largest = fmaxf(largest, fabsf(y[e]));
#pragma unroll 1
    for (int far = 1 << a.quant_bits >> 1; far > 0; far /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, far));
    scale = scale_of(largest);
  }
  if (!live) return;
  uint64_t bytes = 0;
#pragma unroll
  for (int e = 0; e < 8; ++e) bytes |= static_cast<uint64_t>(to_fp8(y[e] / scale)) << (8 * e);
  *reinterpret_cast<uint64_t*>(static_cast<uint8_t*>(a.y) + static_cast<int64_t>(row) * a.D + lane * 8) = bytes;
  const int scales = a.D / a.quant_group;
  if (a.scales != nullptr && lane * 8 % a.quant_group == 0)
    a.scales[static_cast<int64_t>(row) * scales + lane * 8 / a.quant_group] = scale;
}

template <class T, bool FP8, int THREADS>
__device__ __forceinline__ void norm_lanes(const GatedRmsnormArgs& a) {
  const int lane = threadIdx.x & ((1 << a.lane_bits) - 1), column = 8 * lane;
  const uint32_t R = static_cast<uint32_t>(a.rows.R), step = THREADS >> a.lane_bits;
  const T* const x_from = static_cast<const T*>(a.x) + column;
  const T* const z_from = static_cast<const T*>(a.z) + column;
  uint32_t row = blockIdx.x * a.tiles * step + (threadIdx.x >> a.lane_bits);
  if (column >= a.D) row = 1u << 31;  // no row
  Pack<T, 8> packed_x = {}, packed_z = {};
  const auto load = [&](uint32_t row) {
    if (row >= R) return;
    const RowOffsets at(a.rows, row);
    packed_x.load_once(x_from + at.x);
    if (a.activation >= 0) packed_z.load_once(z_from + at.z);
  };
  float w[8] = {};
  const auto load_weight = [&](uint32_t group) {
    if (column >= a.D) return;
    const int64_t at = static_cast<int64_t>(group) * a.D + column;
    if (a.weight_fp32)
      load_pack(static_cast<const float*>(a.weight) + at, w);
    else
      load_pack(static_cast<const T*>(a.weight) + at, w);
  };
  const float per_column = 1.0f / static_cast<float>(a.D);
  load(row);
  if (a.G == 1) load_weight(0);
#pragma unroll 1
  for (int i = 0; i < a.tiles; ++i, row += step) {
    float x[8], gate[8], sum = 0;
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] = settled(packed_x.at(e)), gate[e] = settled(packed_z.at(e));
    if (i + 1 < a.tiles) load(row + step);
    if (a.G > 1) load_weight(row - divide(row, a.by_G) * a.G);
    const auto gates = [&](int32_t activation) {
#pragma unroll
      for (int e = 0; e < 8; ++e) gate[e] = gate_value(x[e], gate[e], activation);
    };
    if (a.activation == kSilu)
      gates(kSilu);
    else if (a.activation == kSigmoid)
      gates(kSigmoid);
    else
      gates(a.activation == kNone ? kNone : -1);
    if (a.gate_first) {
#pragma unroll
      for (int e = 0; e < 8; ++e) x[e] *= gate[e], gate[e] = 1.0f;
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) sum = fmaf(x[e], x[e], sum);
    const float factor = rsqrtf(row_sum(sum, a.lane_bits) * per_column + a.eps);
    const auto norm = [&](int32_t hf_rounding) {
#pragma unroll
      for (int e = 0; e < 8; ++e)
        x[e] = normed(x[e], factor, w[e], gate[e], Number<T>::code, hf_rounding, a.weight_fp32);
    };
    a.hf_rounding ? norm(1) : norm(0);
    if constexpr (FP8) {
      store_fp8<T>(a, row, lane, row < R, x);
    } else if (row < R) {
      Pack<T, 8> y;
      y.set(x);
      y.store(static_cast<T*>(a.y) + static_cast<int64_t>(row) * a.D + column);
    }
  }
}

// ---- a warp a row ----------------------------------------------------------------------------------------------

template <class T, bool FP8, int THREADS>
__device__ __forceinline__ void norm_rows(const GatedRmsnormArgs& a) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= a.rows.R) return;
  const RowOffsets at(a.rows, row);
  const int64_t first = a.G == 1 ? 0 : row % a.G * a.D;  // of the group's weights
  using Bits = typename Number<T>::Bits;
  const Bits* x = static_cast<const Bits*>(a.x) + at.x;
  const Bits* z = static_cast<const Bits*>(a.z) + at.z;
  auto gate = [&](int d) { return gate_value(Number<T>::value(x[d]), Number<T>::value(z[d]), a.activation); };
  auto input = [&](int d) { return Number<T>::value(x[d]) * (a.gate_first ? gate(d) : 1.0f); };

  float sum = 0;
  for (int d = lane; d < a.D; d += 32) sum = fmaf(input(d), input(d), sum);
  sum = warp_sum(sum);
  const float factor = rsqrtf(sum / static_cast<float>(a.D) + a.eps);
  auto value = [&](int d) {
    const int32_t dtype = a.weight_fp32 ? kFP32 : Number<T>::code;
    const float w = bits_value(load_bits(a.weight, first + d, dtype), dtype);
    return normed(input(d), factor, w, a.gate_first ? 1.0f : gate(d), Number<T>::code, a.hf_rounding, a.weight_fp32);
  };
  if constexpr (!FP8) {
    for (int d = lane; d < a.D; d += 32) static_cast<T*>(a.y)[row * a.D + d] = Number<T>::round(value(d));
    return;
  }
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
      scale = scale_of(largest);
    }
    for (int d = begin + lane; d < begin + a.quant_group; d += 32)
      static_cast<uint8_t*>(a.y)[row * a.D + d] = static_cast<uint8_t>(to_fp8(value(d) / scale));
    if (a.scales != nullptr && lane == 0) a.scales[row * (a.D / a.quant_group) + begin / a.quant_group] = scale;
  }
}

template <class T, bool FP8, bool ALIGNED, int THREADS>
__device__ __forceinline__ void gated_rmsnorm(const GatedRmsnormArgs& a) {
  if constexpr (ALIGNED)
    norm_lanes<T, FP8, THREADS>(a);
  else
    norm_rows<T, FP8, THREADS>(a);
}

}  // namespace gdn

#define GDN_KERNEL(symbol, T, FP8, ALIGNED, THREADS, BLOCKS)                  \
  extern "C" __global__ void __launch_bounds__(THREADS, ALIGNED ? BLOCKS : 1) \
      symbol(const __grid_constant__ gdn::GatedRmsnormArgs a) {               \
    gdn::follow_kernel_ahead();                                               \
    gdn::gated_rmsnorm<T, FP8, ALIGNED, THREADS>(a);                          \
  }
GDN_VARIANTS(GDN_KERNEL)
