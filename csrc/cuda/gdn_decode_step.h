// Arguments of the one-launch layer (gdn_decode_step.cu), as host and device see them.
#pragma once

#include "conv.h"
#include "fused_recurrent.h"

namespace gdn {

struct GdnDecodeStepArgs {
  // q, k and v are what the convolution's channels [q | k | v] take in, in rows of z's stride, v of value head j of key
  // head h at h * stride_h + j * V; o is not written; dtype is that of all activations.
  FusedRecurrentArgs rule;
  // convolution
  FilterArg filter;
  // The first W - 1 columns count. With a layout, W is 4, and inputs, weights and lines are moved two channels at once.
  LinesArg lines;
  IndexArg conv_slots;
  int32_t W;
  // norm
  RowsArg z;               // where heads are as in v
  const void* weight;      // [V]
  const float* out_scale;  // [1]: y is fp8, divided by it; null: y has the activations' dtype
  void* y;                 // [tokens, HV, V]
  int32_t weight_fp32, norm_activation, gate_first, hf_rounding;  // flags but for the activation
  float eps;

  int32_t H;
  Divisor key_heads;   // H
  Divisor by_cluster;  // blocks of a cluster: of one row's key head
  uint32_t cluster;
  uint32_t ahead;  // a block asks for the state of the one this much later
};

}  // namespace gdn
