// Arguments of the gated norm with fp8 results (gated_rmsnorm_fp8.cu), as host, CPU twin and device see them.
#pragma once

#include "gated_norm.h"

namespace gdn {

struct GatedRmsnormFp8Args {
  const void* x;           // [n0, n1, n2, G * D], R = n0 * n1 * n2 rows
  const void* weight;      // [G * D]
  const void* z;           // as x, strides of its own
  uint8_t* y;              // [R, G * D], e4m3fn
  const float* out_scale;  // [1]: y is divided by it; null: by scales of its own,
  float* scales;           // [R, G * D / quant_group], which are left here
  int64_t R, n1, n2;
  int64_t x_strides[3], z_strides[3];
  int32_t G, D, quant_group;
  int32_t lanes, quant_lanes;                    // of 8 columns: of D and quant_group, in ALIGNED variants
  int32_t activation;                            // -1: no gate
  int32_t gate_first, hf_rounding, weight_fp32;  // flags
  float eps;
};

// The smallest maximum that a scale is made of.
constexpr float kSmallestMaximum = 1e-10f;

}  // namespace gdn
