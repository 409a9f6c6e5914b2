// Arguments of the kernel between the convolution and the rule (fused_post_conv_prep.cu), as host, CPU twin and device
// see them.
#pragma once

#include "common.h"

namespace gdn {

// A gate input of value head hv of token t: at t * stride_t + hv / r * stride_g + hv % r * stride_h.
struct HeadGateArg {
  const void* data;
  int64_t stride_t, stride_g, stride_h;
  int32_t dtype;
};

struct FusedPostConvPrepArgs {
  const void* qkv;  // [T, D], rows of q | k | v
  void* q;          // [T, H, K]
  void* k;          // [T, H, K]
  void* v;          // [T, HV, V]
  float* g;         // [T, HV]
  float* beta;      // [T, HV]
  HeadGateArg a, b, A_log, dt_bias;
  int64_t T, qkv_stride;  // elements from row to row
  int32_t H, HV, K, V, r;
  int32_t l2norm;    // flag
  int32_t g_linear;  // flag: exp(g) instead of g
  // Of the variants that move 16 bytes at a time: lanes of a head, and a token's items: q and k, then v, then gates.
  int32_t lanes, qk_end, v_end, items;
  Divisor by_items;
};

}  // namespace gdn
