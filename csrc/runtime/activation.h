// Activations as small integers, the values of gdn_ops.NONE, SILU and SIGMOID.
#pragma once

namespace gdn {

enum Activation : int { kNone = 0, kSilu = 1, kSigmoid = 2 };

}  // namespace gdn
