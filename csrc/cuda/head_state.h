// One head's state, spread over a block's threads: all of K, and BV columns of V (all of them, or a slice).
//
// Memory has rows of contiguous elements: of K where V comes first ([V, K]), of V where K does ([K, V]). A warp has
// ROWS / WARPS rows of the tile, side by side, and moves GROUPS of them at once, 16 bytes a lane, so that a row is read
// whole, or in pieces of at least 64 bytes. Every load is issued before the first is looked at.
//
// A thread has its part in registers; or, STAGED, in SHARED bytes of dynamic shared memory: then registers are free,
// and more blocks are at work on a multiprocessor. What is done is the same. Threads load their own parts; or, WHOLE,
// from compute capability 9.0 on, one thread asks for all (bulk.h).
//
// Sums over K are added in one order, whatever BV: a head's results have the same bits however it was cut.
#pragma once

#include "bulk.h"
#include "recurrent_state.h"

namespace gdn {

extern __shared__ uint4 dynamic_shared[];

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

template <class S, bool VFIRST, int K, int BV, int WARPS, bool STAGED = false, bool WHOLE = false>
struct HeadState : ReadOuts<VFIRST ? 1 : WARPS, BV> {
  static constexpr int THREADS = 32 * WARPS;
  static constexpr int VEC = 16 / sizeof(S);
  static constexpr int ROWS = VFIRST ? BV : K;           // rows of the tile
  static constexpr int LANES = (VFIRST ? K : BV) / VEC;  // of one row
  static constexpr int GROUPS = 32 / LANES;              // rows a warp moves at once
  static constexpr int LOADS = ROWS / (WARPS * GROUPS);  // of a thread
  static constexpr int PARTS = VFIRST ? 1 : WARPS;       // read-outs come as this many sums
  static constexpr int CLASSES = VEC;                    // of rows of K, by their index: see add_up
  static constexpr int BYTES = K * BV * sizeof(S);
  static constexpr int SHARED = BYTES + (WHOLE ? 16 : 0);                              // and a barrier
  static constexpr int PIECES = VFIRST || BV == K ? 1 : ROWS, PIECE = BYTES / PIECES;  // of memory that the tile is in
  static constexpr bool BULK = STAGED && WHOLE && kBulk;
  static_assert(LANES <= 32 && LOADS * WARPS * GROUPS == ROWS && GROUPS <= CLASSES, "BV does not suit K");

  float x[LOADS][VEC];             // STAGED: from `gather` on
  uint4 bits[STAGED ? 1 : LOADS];  // as loaded, not yet looked at
  int lane, group, first_row;
  bool asked = false;  // for a tile, whole
  uint32_t phase = 0;

  // WHOLE: one in a block, followed by a barrier; best before the first load, which making it may wait for.
  __device__ __forceinline__ HeadState() {
    if (BULK && threadIdx.x == 0) bulk_init(arrived());
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
    if constexpr (BULK) {
      asked = true;
      if (threadIdx.x == 0) bulk_expect(arrived(), BYTES);
      if constexpr (PIECES == 1) {
        if (threadIdx.x == 0) bulk_load(dynamic_shared, tile, PIECE, arrived());
      } else if (threadIdx.x < 32) {
        __syncwarp();
        for (int i = threadIdx.x; i < PIECES; i += 32)
          bulk_load(dynamic_shared + i * (PIECE / 16), tile + i * V, PIECE, arrived());
      }
    } else {
#pragma unroll
      for (int i = 0; i < LOADS; ++i) {
        const auto* p = reinterpret_cast<const uint4*>(tile + at(i, VFIRST ? K : V));
        if constexpr (STAGED)
          copy_16_bytes<true>(staged(i), p);
        else
          bits[i] = __ldcs(p);
      }
    }
  }

  // Asks for the tile to be brought to L2, which changes nothing but how long `load` takes; also of a tile that another
  // kernel still writes. By so many threads, of which this is one.
  static __device__ __forceinline__ void prefetch(const S* tile, int V, int thread, int threads = THREADS) {
    constexpr int LINE = 128 / sizeof(S), ROW = VFIRST ? K : BV;  // elements
    constexpr int PER_ROW = ROW / LINE > 0 ? ROW / LINE : 1;
#pragma unroll
    for (int i = thread; i < ROWS * PER_ROW; i += threads)
      prefetch_line(tile + i / PER_ROW * (VFIRST ? K : V) + i % PER_ROW * LINE);
  }

  // The same by one warp, whole.
  static __device__ __forceinline__ void prefetch_whole(const S* tile, int V) {
    const int lane = threadIdx.x % 32;
    if constexpr (kBulk && PIECES == 1) {
      if (lane == 0) bulk_prefetch(tile, PIECE);
    } else if constexpr (kBulk) {
      for (int i = lane; i < PIECES; i += 32) bulk_prefetch(tile + i * V, PIECE);
    } else {
      prefetch(tile, V, lane, 32);
    }
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < LOADS; ++i) (STAGED ? *staged(i) : bits[i]) = make_uint4(0, 0, 0, 0);
  }

  // The loads have arrived.
  __device__ __forceinline__ void unpack() {
    if constexpr (BULK) {
      if (asked) bulk_wait(arrived(), phase), phase ^= 1;
    } else if constexpr (STAGED) {
      wait_for_copies();
    } else {
#pragma unroll
      for (int i = 0; i < LOADS; ++i) unpack_16_bytes<S>(bits[i], x[i]);
    }
  }

  // The tile as it was loaded, in registers, where `fold` and `store` take it from.
  __device__ __forceinline__ void gather() {
    if constexpr (STAGED) {
#pragma unroll
      for (int i = 0; i < LOADS; ++i) numbers(i, x[i]);
    }
  }

  // Where load i is: of a WHOLE tile as in memory, else wherever no other thread's is.
  __device__ __forceinline__ uint4* staged(int i) const {
    return dynamic_shared + (WHOLE ? row(i) * LANES + lane : i * THREADS + static_cast<int>(threadIdx.x));
  }
  static __device__ __forceinline__ uint64_t* arrived() {
    return reinterpret_cast<uint64_t*>(dynamic_shared + BYTES / 16);
  }

  // The numbers of load i.
  __device__ __forceinline__ void numbers(int i, float (&y)[VEC]) const {
    if constexpr (STAGED) {
      unpack_16_bytes<S>(*staged(i), y);
    } else {
#pragma unroll
      for (int e = 0; e < VEC; ++e) y[e] = x[i][e];
    }
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
      constexpr int FEW = N < 4 ? N : 4, MOST = LANES < 16 ? LANES : 16;  // vectors, and numbers, at once: what
      constexpr int AT_ONCE = FEW * LOADS <= MOST ? LOADS : MOST / FEW;   // registers have room for; and rows
      constexpr int NUMBERS = FEW * AT_ONCE, SHARE = LANES / NUMBERS;
#pragma unroll
      for (int j0 = 0; j0 < N; j0 += FEW) {
        float mine[FEW][VEC];
#pragma unroll
        for (int j = 0; j < FEW; ++j)
#pragma unroll
          for (int e = 0; e < VEC; ++e) mine[j][e] = z[(j0 + j) * K + lane * VEC + e];
#pragma unroll
        for (int i0 = 0; i0 < LOADS; i0 += AT_ONCE) {
          float y[NUMBERS];
#pragma unroll
          for (int i = 0; i < AT_ONCE; ++i) {
            float h[VEC];
            numbers(i0 + i, h);
#pragma unroll
            for (int j = 0; j < FEW; ++j) {
              float& sum = y[j * AT_ONCE + i];
              sum = 0;
#pragma unroll
              for (int e = 0; e < VEC; ++e) sum = fmaf(h[e], mine[j][e], sum);
            }
          }
          spread_sums<LANES, 1, NUMBERS>(y, lane);
          const int n = lane / SHARE;
          if (lane % SHARE == 0) sums[(j0 + n / AT_ONCE) * BV + row(i0 + n % AT_ONCE)] = y[0];
        }
      }
    } else {
      constexpr int PAIR = N < 2 ? N : 2, NUMBERS = PAIR * VEC / GROUPS;  // two vectors at once
      const int warp = threadIdx.x / 32;
#pragma unroll
      for (int j = 0; j < N; j += PAIR) {
        float y[PAIR * VEC];
        add_up<PAIR, 1>(z + j * K, 0, y);
        spread_sums<GROUPS, LANES, PAIR * VEC>(y, group);
#pragma unroll
        for (int i = 0; i < NUMBERS; ++i) {
          const int n = group * NUMBERS + i;
          sums[(warp * N + j + n / VEC) * BV + lane * VEC + n % VEC] = y[i];
        }
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
        float h[VEC];
        numbers(i, h);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const float factor = z[j * K + row(i)];
#pragma unroll
          for (int e = 0; e < VEC; ++e) y[j * VEC + e] = fmaf(h[e], factor, y[j * VEC + e]);
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

  // decay h + k w^T to memory, k [K] and w [BV] in shared memory.
  template <class W>
  __device__ __forceinline__ void store_folded(float decay, const float* k, const float* w, W* tile, int V) const {
    const float *along = VFIRST ? k : w, *across = VFIRST ? w : k;  // along a row, and one number a row
    float z[VEC];
#pragma unroll
    for (int e = 0; e < VEC; ++e) z[e] = along[lane * VEC + e];
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      float h[VEC];
      numbers(i, h);
      const float factor = across[row(i)];
#pragma unroll
      for (int e = 0; e < VEC; ++e) h[e] = fmaf(z[e], factor, decay * h[e]);
      store_numbers(tile + at(i, VFIRST ? K : V), h);
    }
  }

  // The same for any number of tokens, each with a weight: bring(t) has all threads put those from t on to k [.., K]
  // and w [.., BV] and says how many they are, again for every SOME loads, as many as registers have room for.
  template <class W, class Bring>
  __device__ __forceinline__ void store_folded(float decay, int tokens, const float* k, const float* w,
                                               const float* weights, W* tile, int V, Bring bring) const {
    constexpr int SOME = 32 / VEC < LOADS ? 32 / VEC : LOADS;
    const float *along = VFIRST ? k : w, *across = VFIRST ? w : k;
#pragma unroll 1
    for (int i0 = 0; i0 < LOADS; i0 += SOME) {
      float h[SOME][VEC];
#pragma unroll
      for (int i = 0; i < SOME; ++i) {
        numbers(i0 + i, h[i]);
#pragma unroll
        for (int e = 0; e < VEC; ++e) h[i][e] *= decay;
      }
#pragma unroll 1
      for (int t0 = 0, count; t0 < tokens; t0 += count) {
        count = bring(t0);
#pragma unroll 1
        for (int t = 0; t < count; ++t) {
          float z[VEC];
#pragma unroll
          for (int e = 0; e < VEC; ++e) z[e] = weights[t0 + t] * along[t * (VFIRST ? K : BV) + lane * VEC + e];
#pragma unroll
          for (int i = 0; i < SOME; ++i) {
            const float factor = across[t * (VFIRST ? BV : K) + row(i0 + i)];
#pragma unroll
            for (int e = 0; e < VEC; ++e) h[i][e] = fmaf(z[e], factor, h[i][e]);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < SOME; ++i) store_numbers(tile + at(i0 + i, VFIRST ? K : V), h[i]);
    }
  }

  // h <- decay h + sum_t k_t w_t^T, over tokens' k [tokens, K] and w [tokens, BV] in shared memory, each times its
  // weight if there are weights.
  __device__ __forceinline__ void fold(float decay, const float* k, const float* w, int tokens,
                                       const float* weights = nullptr) {
#pragma unroll
    for (int i = 0; i < LOADS; ++i)
#pragma unroll
      for (int e = 0; e < VEC; ++e) x[i][e] *= decay;
    const float *along = VFIRST ? k : w, *across = VFIRST ? w : k;  // along a row, and one number a row
#pragma unroll 1
    for (int t = 0; t < tokens; ++t, along += VFIRST ? K : BV, across += VFIRST ? BV : K) {
      float z[VEC];
#pragma unroll
      for (int e = 0; e < VEC; ++e) z[e] = (weights ? weights[t] : 1.0f) * along[lane * VEC + e];
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
