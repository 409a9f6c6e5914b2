// Sums over the lanes of a warp.
#pragma once

#include "common.h"

namespace gdn {

constexpr unsigned kAll = 0xffffffffu;

// The sum of x over all lanes, in each of them.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int far = 16; far > 0; far /= 2) x += __shfl_xor_sync(kAll, x, far);
  return x;
}

// The sum of x over 2^bits lanes side by side, in each of them.
__device__ __forceinline__ float row_sum(float x, int32_t bits) {
#pragma unroll 1
  for (int far = 1 << bits >> 1; far > 0; far /= 2) x += __shfl_xor_sync(kAll, x, far);
  return x;
}

// Sums of x[0 .. N) over LANES lanes, STEP apart, of which `lane` is this one. Each exchange halves what a lane still
// sums, so N numbers take N - 1 shuffles, and one each for what is left to sum when a lane has one number. Lane i is
// left with the numbers from i * N / LANES on, in x[0 .. max(1, N / LANES)).
template <int LANES, int STEP, int N, int SIZE>
__device__ __forceinline__ void spread_sums(float (&x)[SIZE], int lane) {
  constexpr int FAR = LANES / 2, HALF = N / 2;
  if constexpr (FAR > 0 && N == 1) {
    x[0] += __shfl_xor_sync(kAll, x[0], FAR * STEP);
    spread_sums<FAR, STEP, 1>(x, lane);
  } else if constexpr (FAR > 0) {
    const bool upper = lane & FAR;
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
      const float mine = upper ? x[i + HALF] : x[i], theirs = upper ? x[i] : x[i + HALF];
      x[i] = mine + __shfl_xor_sync(kAll, theirs, FAR * STEP);
    }
    spread_sums<FAR, STEP, HALF>(x, lane);
  }
}

}  // namespace gdn
