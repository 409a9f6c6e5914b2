// Where the rows of norms are: those of x and, for gated norms, of z.
#pragma once

#include "common.h"

namespace gdn {

// R rows of x and z, [n0, n1, ..] with strides of their own. The groups of columns that are normalised alone are rows.
struct NormRows {
  int64_t R;
  int64_t n[4], x_strides[4], z_strides[4];
  Divisor by_n[4];  // where rows are counted in 31 bits
  int32_t dims;     // those that could be merged are one
  int32_t many;     // flag: rows are not counted in 31 bits
};

}  // namespace gdn

#ifdef GDN_DEVICE

namespace gdn {

__device__ __forceinline__ uint32_t quotient(const NormRows& rows, uint32_t row, int d) {
  return divide(row, rows.by_n[d]);
}
// A 64-bit division takes a hundred instructions.
__device__ __forceinline__ int64_t quotient(const NormRows& rows, int64_t row, int d) {
  return rows.many ? row / rows.n[d] : divide(static_cast<uint32_t>(row), rows.by_n[d]);
}

struct RowOffsets {
  int64_t x, z;

  // Index: uint32_t where there are not many rows, or int64_t.
  template <class Index>
  __device__ __forceinline__ RowOffsets(const NormRows& rows, Index row) : x(0), z(0) {
#pragma unroll 1
    for (int d = rows.dims - 1; d > 0; --d) {
      const Index next = quotient(rows, row, d), i = row - next * static_cast<Index>(rows.n[d]);
      x += i * rows.x_strides[d], z += i * rows.z_strides[d];
      row = next;
    }
    x += row * rows.x_strides[0], z += row * rows.z_strides[0];
  }
};

}  // namespace gdn

#endif  // GDN_DEVICE
