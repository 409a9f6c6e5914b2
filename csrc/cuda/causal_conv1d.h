// Arguments of the causal convolution kernel (causal_conv1d.cu), as host, CPU twin and device see them.
#pragma once

#include "common.h"

namespace gdn {

// Where channels of tokens of batch rows are, in elements.
struct TokensArg {
  int64_t stride_b, stride_t, stride_d;
};

struct CausalConv1dArgs {
  const void* x;
  void* y;
  const void* weight;  // [D, W]
  const void* bias;    // [D]; null: none
  void* state;         // [slots, D, L]; null: every history is zeros and none is kept
  TokensArg x_at, y_at;
  int64_t weight_stride_d, weight_stride_w, bias_stride;
  int64_t state_stride_n, state_stride_d, state_stride_l;
  IndexArg cu_seqlens;       // [N + 1]; words 0: N rows of T tokens
  IndexArg indices;          // [N] slots; words 0: slot n belongs to sequence n
  const uint8_t* has_state;  // [N] flags, stride apart; null: `history` for all
  int64_t has_state_stride;
  int64_t N, T, D;
  int64_t min_slot, slots;  // slots outside [min_slot, slots) are padding
  int64_t chunks;           // chunk slots of 2^log_BT tokens
  int32_t log_BT;
  int32_t W;
  int32_t line;         // columns of a state that count; the history is the last W - 1 of them, the others shift along
  int32_t history;      // flag: sequences continue their state, without has_state
  int32_t activation;   // kNone, kSilu
  int32_t weight_fp32;  // flags: fp32, otherwise as x
  int32_t bias_fp32;
  int32_t state_fp32;
  int32_t weight_packed;  // flag: contiguous, on 16 bytes, as x
  int32_t state_layout;   // kAnyState, or packs of VEC elements as x: kChannelsLast, kPackedLines
};

// How a state lies in memory: any strides; channels of a column contiguous; the W - 1 columns of a channel contiguous
// and channels one after another.
constexpr int32_t kAnyState = 0, kChannelsLast = 1, kPackedLines = 2;

}  // namespace gdn
