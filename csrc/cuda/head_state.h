// One head's state in the registers of a block of 256 threads: all of K, and BV columns of V (all of them, or a slice).
//
// Memory has rows of contiguous elements: of K where V comes first ([V, K]), of V where K does ([K, V]). A warp has
// ROWS / 8 rows of the tile, side by side, and moves GROUPS of them at once, 16 bytes a lane, so that a row is read
// whole, or in pieces of at least 64 bytes. Every load is issued before the first is looked at.
//
// Sums over K are added in one order, whatever BV: a head's results have the same bits however it was cut.
#pragma once

#include "recurrent_state.h"

namespace gdn {

// Read-outs in shared memory, sums [PARTS, N, BV] of which PARTS are still to be added.
template <int PARTS, int BV>
struct ReadOuts {
  // Read-out j of N at column v of the tile.
  template <int N>
  static __device__ __forceinline__ float read(const float* sums, int j, int v) {
    float sum = sums[j * BV + v];
#pragma unroll
    for (int p = 1; p < PARTS; ++p) sum += sums[(p * N + j) * BV + v];
    return sum;
  }
};

template <class S, bool VFIRST, int K, int BV, int WARPS>
struct HeadState : ReadOuts<VFIRST ? 1 : WARPS, BV> {
  static constexpr int THREADS = 32 * WARPS;
  static constexpr int VEC = 16 / sizeof(S);
  static constexpr int ROWS = VFIRST ? BV : K;           // rows of the tile
  static constexpr int LANES = (VFIRST ? K : BV) / VEC;  // of one row
  static constexpr int GROUPS = 32 / LANES;              // rows a warp moves at once
  static constexpr int LOADS = ROWS / (WARPS * GROUPS);  // of a thread
  static constexpr int PARTS = VFIRST ? 1 : WARPS;       // read-outs come as this many sums
  static constexpr int CLASSES = VEC;                    // of rows of K, by their index: see add_up
  static_assert(LANES <= 32 && LOADS * WARPS * GROUPS == ROWS && GROUPS <= CLASSES, "BV does not suit K");

  float x[LOADS][VEC];
  uint4 bits[LOADS];  // as loaded, not yet looked at
  int lane, group, first_row;

  __device__ __forceinline__ HeadState() {
    const int in_warp = threadIdx.x % 32, warp = threadIdx.x / 32;
    lane = in_warp % LANES, group = in_warp / LANES, first_row = warp * (ROWS / WARPS) + group;
  }

  __device__ __forceinline__ int row(int i) const { return first_row + i * GROUPS; }
  // Element of load i from the first of the tile; rows are `width` apart.
  __device__ __forceinline__ int at(int i, int width) const { return row(i) * width + lane * VEC; }
  // Where the tile with column v0 begins in a head's state.
  static __device__ __forceinline__ int origin(int v0) { return VFIRST ? v0 * K : v0; }

  // V: columns of the whole state.
  __device__ __forceinline__ void load(const S* tile, int V) {
#pragma unroll
    for (int i = 0; i < LOADS; ++i) bits[i] = __ldcs(reinterpret_cast<const uint4*>(tile + at(i, VFIRST ? K : V)));
  }

  // Asks for the tile to be brought to L2, which changes nothing but how long `load` takes; also of a tile that another
  // kernel still writes. By `threads` threads, of which this is number `first`.
  static __device__ __forceinline__ void prefetch(const S* tile, int V, int first = threadIdx.x,
                                                  int threads = THREADS) {
    constexpr int LINE = 128 / sizeof(S), ROW = VFIRST ? K : BV;  // elements
    constexpr int PER_ROW = ROW / LINE > 0 ? ROW / LINE : 1;
#pragma unroll
    for (int i = first; i < ROWS * PER_ROW; i += threads)
      prefetch_line(tile + i / PER_ROW * (VFIRST ? K : V) + i % PER_ROW * LINE);
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < LOADS; ++i) bits[i] = make_uint4(0, 0, 0, 0);
  }

  __device__ __forceinline__ void unpack() {
#pragma unroll
    for (int i = 0; i < LOADS; ++i) unpack_16_bytes<S>(bits[i], x[i]);
  }

  template <class W>
  __device__ __forceinline__ void store(W* tile, int V) const {
#pragma unroll
    for (int i = 0; i < LOADS; ++i) store_numbers(tile + at(i, VFIRST ? K : V), x[i]);
  }

  // Read-outs h^T z of N vectors z [N, K] into sums [PARTS, N, BV], both in shared memory. Followed by a barrier;
  // `read` then gives one number.
  template <int N>
  __device__ __forceinline__ void read_out(const float* z, float* sums) const {
    if constexpr (VFIRST) {
      float mine[N][VEC];
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int e = 0; e < VEC; ++e) mine[j][e] = z[j * K + lane * VEC + e];
      constexpr int AT_ONCE = N * LOADS <= LANES ? LOADS : LANES / N;  // rows, so that lanes end with a number each
      constexpr int NUMBERS = N * AT_ONCE, SHARE = LANES / NUMBERS;
#pragma unroll
      for (int i0 = 0; i0 < LOADS; i0 += AT_ONCE) {
        float y[NUMBERS];
#pragma unroll
        for (int n = 0; n < NUMBERS; ++n) {
          y[n] = 0;
#pragma unroll
          for (int e = 0; e < VEC; ++e) y[n] = fmaf(x[i0 + n % AT_ONCE][e], mine[n / AT_ONCE][e], y[n]);
        }
        spread_sums<LANES, 1, NUMBERS>(y, lane);
        const int n = lane / SHARE;
        if (lane % SHARE == 0) sums[n / AT_ONCE * BV + row(i0 + n % AT_ONCE)] = y[0];
      }
    } else {
      float y[N * VEC];
      add_up<N, 1>(z, 0, y);
      spread_sums<GROUPS, LANES, N * VEC>(y, group);
      constexpr int NUMBERS = N * VEC / GROUPS;
      const int warp = threadIdx.x / 32;
#pragma unroll
      for (int i = 0; i < NUMBERS; ++i) {
        const int n = group * NUMBERS + i;
        sums[(warp * N + n / VEC) * BV + lane * VEC + n % VEC] = y[i];
      }
    }
  }

  // K first. Rows of K of one class (index modulo CLASSES) are added one after another, and classes as a tree: c and
  // c + stride for strides from CLASSES / 2 down to 1. A thread has the classes of its group, and the last levels of
  // the tree are between lanes; so a different number of groups adds the same numbers in the same order.
  template <int N, int STRIDE>
  __device__ __forceinline__ void add_up(const float* z, int of, float (&y)[N * VEC]) const {
    constexpr int MINE = CLASSES / GROUPS;
    if constexpr (STRIDE >= MINE) {
#pragma unroll
      for (int n = 0; n < N * VEC; ++n) y[n] = 0;
#pragma unroll
      for (int i = 0; i < LOADS; ++i) {
        if (i % MINE != of) continue;
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const float factor = z[j * K + row(i)];
#pragma unroll
          for (int e = 0; e < VEC; ++e) y[j * VEC + e] = fmaf(x[i][e], factor, y[j * VEC + e]);
        }
      }
    } else {
      float other[N * VEC];
      add_up<N, 2 * STRIDE>(z, of, y);
      add_up<N, 2 * STRIDE>(z, of + STRIDE, other);
#pragma unroll
      for (int n = 0; n < N * VEC; ++n) y[n] += other[n];
    }
  }

  // h <- decay h + sum_t k_t w_t^T, over tokens' k [tokens, K] and w [tokens, BV] in shared memory.
  __device__ __forceinline__ void fold(float decay, const float* k, const float* w, int tokens) {
#pragma unroll
    for (int i = 0; i < LOADS; ++i)
#pragma unroll
      for (int e = 0; e < VEC; ++e) x[i][e] *= decay;
    const float *along = VFIRST ? k : w, *across = VFIRST ? w : k;  // along a row, and one number a row
#pragma unroll 1
    for (int t = 0; t < tokens; ++t, along += VFIRST ? K : BV, across += VFIRST ? BV : K) {
      float z[VEC];
#pragma unroll
      for (int e = 0; e < VEC; ++e) z[e] = along[lane * VEC + e];
#pragma unroll
      for (int i = 0; i < LOADS; ++i) {
        const float factor = across[row(i)];
#pragma unroll
        for (int e = 0; e < VEC; ++e) x[i][e] = fmaf(z[e], factor, x[i][e]);
      }
    }
  }
};

}  // namespace gdn
