// Gates from what a layer's projections give.
#pragma once

#include "common.h"

namespace gdn {

// Where the gate of value head j of key head h's group is in row r, and its value there.
__device__ __forceinline__ int64_t gate_at(const GateArg& x, uint32_t r, uint32_t h, uint32_t j) {
  return r * x.at.stride_r + h * x.stride_g + j * x.at.stride_h;
}
__device__ __forceinline__ float gate_number(const GateArg& x, int64_t at) {
  return bits_value(load_bits(x.at.data, at, x.dtype), x.dtype);
}

// g: a on the way in, the log decay on the way out; beta: b, then beta.
__device__ __forceinline__ void raw_gates(float& g, float& beta, float A_log, float dt_bias) {
  const float x = g + dt_bias;
  g = -expf(A_log) * (x > 20.0f ? x : log1pf(expf(x)));
  beta = __fdividef(1.0f, 1.0f + expf(-beta));
}

}  // namespace gdn
