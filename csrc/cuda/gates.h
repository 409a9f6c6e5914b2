// Gates from what a layer's projections give.
#pragma once

#include "common.h"

namespace gdn {

// g: a on the way in, the log decay on the way out; beta: b, then beta.
__device__ __forceinline__ void raw_gates(float& g, float& beta, float A_log, float dt_bias) {
  const float x = g + dt_bias;
  g = -expf(A_log) * (x > 20.0f ? x : log1pf(expf(x)));
  beta = __fdividef(1.0f, 1.0f + expf(-beta));
}

}  // namespace gdn
