// What the norms' host functions share: the rows of their tensors, and how many lanes hold one.
#pragma once

#include <algorithm>

#include "cuda/norm_rows.h"
#include "runtime/args.h"

namespace gdn {

// The dimensions before the last of x and z, outermost first, those merged that are one in both.
class RowDims {
 public:
  static constexpr int kMost = 4;
  int used = 0;  // more than kMost: they do not fit

  void add(int64_t size, int64_t x_stride, int64_t z_stride = 0) {
    if (size == 1 || used > kMost) return;
    const int last = used - 1;
    if (used == 0 || x_strides_[last] != size * x_stride || z_strides_[last] != size * z_stride) ++used;
    if (used > kMost) return;
    const int i = used - 1;
    n_[i] *= size, x_strides_[i] = x_stride, z_strides_[i] = z_stride;
  }

  NormRows rows() const {
    NormRows rows{};
    rows.R = n_[0] * n_[1] * n_[2] * n_[3], rows.dims = used, rows.many = rows.R > INT32_MAX;
    for (int i = 0; i < kMost; ++i) {
      rows.n[i] = n_[i], rows.x_strides[i] = x_strides_[i], rows.z_strides[i] = z_strides_[i];
      rows.by_n[i] = divisor(rows.many ? 1 : std::max<int64_t>(n_[i], 1));
    }
    return rows;
  }

 private:
  int64_t n_[kMost] = {1, 1, 1, 1}, x_strides_[kMost] = {}, z_strides_[kMost] = {};
};

// log2 of the lanes that hold D columns, 8 a lane; -1 where that is not whole or not in a warp.
inline int32_t lane_bits(int64_t D) {
  if (D % 8 != 0 || D > 256) return -1;
  int32_t bits = 0;
  while ((8 << bits) < D) ++bits;
  return bits;
}

}  // namespace gdn
