// Arguments of the one-launch layer for rows of several tokens (gdn_decode_verify.cu), as host and device see them.
#pragma once

#include "conv.h"
#include "fused_recurrent.h"

namespace gdn {

constexpr int32_t kMostLayerTokens = 8;  // of a row

struct GdnDecodeVerifyArgs {
  FusedRecurrentArgs rule;  // q, k, v and o are not read; dtype is that of all activations
  // convolution
  RowsArg x;         // channels of tokens; no heads
  GroupsArg groups;  // where x's channels [q | k | v] are
  FilterArg filter;
  LinesArg lines;
  IndexArg conv_slots;
  int32_t W;
  int32_t line;  // columns of a line that count: the history is the last W - 1 of them; with accepted counts it starts
                 // at column accepted - 1, and (its last W - 2 columns, the inputs) are what stays, from column 0 on
  LinesArg windows;  // [slots, tokens, D, W - 1]: the last inputs after every token, and lines stay as they are
  int64_t window_stride_t;
  // norm
  RowsArg z;               // of value head j of key head h of a token at h * stride_h + j * V
  const void* weight;      // [V]
  const float* out_scale;  // [1]: y is fp8, divided by it; null: y has the activations' dtype
  void* y;                 // [tokens, HV, V]
  int32_t weight_fp32, norm_activation, gate_first, hf_rounding;  // flags but for the activation
  float eps;

  int32_t H;
  Divisor key_heads;  // H
  uint32_t cluster;   // blocks of one row's key head: one of its value heads each, or 1, which has all of them
  Divisor by_cluster;
  uint32_t ahead;  // a block asks for the state of the one this much later
};

}  // namespace gdn
