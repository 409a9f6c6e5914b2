// One number of a gated RMS norm, y = x * factor * weight * act(z), and its rounding to fp8.
#pragma once

#include "common.h"

namespace gdn {

constexpr float kFp8Max = 448.0f;  // the largest number of e4m3fn

}  // namespace gdn

#ifdef GDN_DEVICE

#include "runtime/activation.h"

#ifdef __CUDACC_RTC__
#include <cuda_fp8.h>
#else
#include <torch/headeronly/util/Float8_e4m3fn.h>
#endif

namespace gdn {

__device__ __forceinline__ uint32_t to_fp8(float x) {
#ifdef __CUDACC_RTC__
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
#else
  x = x > kFp8Max ? kFp8Max : x < -kFp8Max ? -kFp8Max : x;
  return torch::headeronly::Float8_e4m3fn(x).x;
#endif
}

__device__ __forceinline__ float rounded(float x, int32_t dtype) {
  if (dtype == kBF16) return Number<bf16>::value(same_bits<uint16_t>(Number<bf16>::round(x)));
  if (dtype == kFP16) return Number<fp16>::value(same_bits<uint16_t>(Number<fp16>::round(x)));
  return x;
}

// What the gate multiplies x by; where x is zero the result is, whatever z holds.
__device__ __forceinline__ float gate_value(float x, float z, int32_t activation) {
  if (activation < 0) return 1.0f;
  if (x == 0.0f) z = 0.0f;
  if (activation == kNone) return z;
  const float s = sigmoid(z);
  return activation == kSilu ? z * s : s;
}

// A result in the activations' dtype, or in fp8 divided by a scale.
__device__ __forceinline__ void store_result(void* p, int64_t i, float y, const float* out_scale, int32_t dtype) {
  if (out_scale)
    static_cast<uint8_t*>(p)[i] = static_cast<uint8_t>(to_fp8(y / *out_scale));
  else
    store_rounded(p, i, y, dtype);
}

// hf_rounding: to dtype after each step, as modules that are not fused do.
__device__ __forceinline__ float normed(float x, float factor, float w, float gate, int32_t dtype, int32_t hf_rounding,
                                        int32_t weight_fp32) {
  float y = x * factor;
  if (!hf_rounding) return y * w * gate;
  y = rounded(y, dtype) * w;
  if (!weight_fp32) y = rounded(y, dtype);
  return rounded(y * gate, dtype);
}

}  // namespace gdn

#endif  // GDN_DEVICE
