// Where a row of a norm lies, as RowOffsets in csrc/cuda/norm_rows.h.
#pragma once

#include "cuda/norm_rows.h"

namespace gdn::cpu {

struct RowAt {
  int64_t x, z;
};

inline RowAt row_offsets(const NormRows& rows, int64_t row) {
  RowAt at = {0, 0};
  for (int d = 3; d >= 0; --d) {
    const int64_t i = row % rows.n[d];
    at.x += i * rows.x_strides[d], at.z += i * rows.z_strides[d];
    row /= rows.n[d];
  }
  return at;
}

}  // namespace gdn::cpu
