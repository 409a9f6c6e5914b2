// Arguments of the l2norm kernel (l2norm.cu), as host, CPU twin and device see them.
#pragma once

#include "norm_rows.h"

namespace gdn {

struct L2normArgs {
  const void* x;  // [n0, n1, n2, D]
  void* y;        // the same, contiguous
  NormRows rows;
  int32_t D;
  int32_t lane_bits;  // log2 of the lanes of a row, in ALIGNED variants
  float eps;
};

}  // namespace gdn
