// Arguments of the one-launch layer (gdn_decode_step.cu), as host and device see them.
#pragma once

#include "conv.h"
#include "fused_recurrent.h"

namespace gdn {

struct GdnDecodeStepArgs {
  FusedRecurrentArgs rule;  // q, k, v and o are not read; dtype is that of all activations
  // convolution
  RowsArg x;         // channels of tokens; no heads
  GroupsArg groups;  // where x's channels [q | k | v] are
  FilterArg filter;
  LinesArg lines;  // the first W - 1 columns count
  IndexArg conv_slots;
  int32_t W;
  // norm
  RowsArg z;               // of value head j of key head h of a token at h * stride_h + j * V
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
