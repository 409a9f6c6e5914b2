// Arguments of the gated norm (gated_rmsnorm.cu), as host, CPU twin and device see them.
#pragma once

#include "gated_norm.h"
#include "norm_rows.h"

namespace gdn {

struct GatedRmsnormArgs {
  const void* x;           // [n0, n1, n2, G * D]
  const void* weight;      // [G * D]
  const void* z;           // as x, strides of its own
  void* y;                 // contiguous, may be x; e4m3fn in FP8 variants
  const float* out_scale;  // FP8, [1]: y is divided by it; null: by scales of its own,
  float* scales;           // [R, D / quant_group], which are left here
  NormRows rows;           // of D columns
  Divisor by_G;
  int32_t G, D, quant_group;
  int32_t tiles;                                 // of rows that a block takes, in ALIGNED variants
  int32_t lane_bits, quant_bits;                 // log2 of the lanes of D and quant_group, in ALIGNED variants
  int32_t activation;                            // -1: no gate
  int32_t gate_first, hf_rounding, weight_fp32;  // flags
  float eps;
};

// The smallest maximum that a scale is made of.
constexpr float kSmallestMaximum = 1e-10f;

}  // namespace gdn
