// Arguments of the kernel that convolves one token a row and hands out its parts (conv_pack_gdn_decode_inputs.cu), as
// host, CPU twin and device see them.
#pragma once

#include "conv.h"

namespace gdn {

// A tensor [B, heads, V] that is copied into contiguous memory.
struct CopyArg {
  const void* from;
  void* to;
  int64_t stride_b, stride_h, stride_v;
  int32_t fp32;  // flag: fp32, otherwise as x
};

struct ConvPackGdnDecodeInputsArgs {
  const void* x;  // [B, D]
  int64_t x_stride_b, x_stride_d;
  void *q, *k, *v;  // [B, keys], [B, keys], [B, values]
  CopyArg z, a, b;  // [B, HV, V]; [B, HV], V 1
  FilterArg filter;
  LinesArg state;
  IndexArg indices;  // [B]
  int64_t min_slot;  // slots outside [min_slot, state.slots) are padding
  int64_t B;
  int32_t keys, values;  // channels of q and of k; of v and z
  int32_t HV, V;
  int32_t W;
  Divisor by_V;
};

}  // namespace gdn
