// Arguments of the one-token kernel (fused_recurrent_step.cu): those of the token loop, but for what only several
// tokens or odd sizes need (cu_seqlens, spec, n_head_blocks: not read).
#pragma once

#include "fused_recurrent.h"

namespace gdn {

struct FusedRecurrentStepArgs {
  FusedRecurrentArgs rule;
  uint32_t ahead;  // a block asks for the state of the one this much later
};

}  // namespace gdn
