// Arguments of the kernel of short rows (fused_recurrent_verify.cu): those of the token loop, but for what it leaves to
// that (scales, seed, checkpoints, head_blocks: not read).
#pragma once

#include "fused_recurrent.h"

namespace gdn {

constexpr int32_t kMostVerified = 16;  // tokens of a row

struct FusedRecurrentVerifyArgs {
  FusedRecurrentArgs rule;
  uint32_t ahead;  // a block asks for the state of the one this much later
};

}  // namespace gdn
