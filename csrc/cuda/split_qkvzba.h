// Arguments of the kernel that splits projection rows (split_qkvzba.cu), as host, CPU twin and device see them.
#pragma once

#include "common.h"

namespace gdn {

// One of q, k, v, z (in units) and b, a (in elements) of a token: part i is at base + i / inner * group + i % inner of
// its input row, so heads may lie together or in groups of a key head.
struct SegmentArg {
  int32_t base, inner, group;
  Divisor by_inner;
};

struct SplitQkvzbaArgs {
  const void* mixed;
  const void* ba;  // the same memory as mixed where one row holds everything
  void* qkv;       // [T, D]
  void* z;         // [T, HV, V]
  void* b;         // [T, HV]
  void* a;
  int64_t mixed_stride, ba_stride;  // bytes from token to token
  int64_t T;
  SegmentArg segments[6];  // q, k, v, z, b, a
  int32_t ends[6];         // of them in a token's items
  Divisor by_token;        // by ends[5]
  int32_t unit;            // bytes of an item of q, k, v, z: 16, 8, 4 or 2
  int32_t gate;            // bytes of an item of b, a: 4 or 2
};

}  // namespace gdn
