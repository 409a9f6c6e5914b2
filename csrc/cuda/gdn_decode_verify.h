// Arguments of the one-launch layer for rows of several tokens (gdn_decode_verify.cu): those of one token, and what
// speculative decoding adds to its convolution.
#pragma once

#include "gdn_decode_step.h"

namespace gdn {

constexpr int32_t kMostLayerTokens = 8;  // of a row

struct GdnDecodeVerifyArgs {
  GdnDecodeStepArgs
      layer;     // a cluster has the value heads of a key head, a block each; of 1 block: one has all of them
  int32_t line;  // columns of a line that count: the history is the last W - 1 of them; with accepted counts it starts
                 // at column accepted - 1, and (its last W - 2 columns, the inputs) are what stays, from column 0 on
  LinesArg windows;  // [slots, tokens, D, W - 1]: the last inputs after every token, and lines stay as they are
  int64_t window_stride_t;
};

}  // namespace gdn
