// The kRows role of causal_conv1d.cu: a thread has VEC channels of a whole row, few tokens of one sequence, so that it
// alone decides what its state becomes, and when.
//
// The history is read first, then the new state is written, from x and before any result: results may take x's place.
//   positions   lines are rings: the history ends before column `position`, inputs follow from there on
//   accepted    the history starts at column accepted - 1; afterwards (its last W - 2 columns, the inputs) start at
//               column 0, so that the step after finds its history by how many inputs were accepted
//   otherwise   the history is the last W - 1 columns of the line, which shifts along
//   windows     the last W - 1 inputs after every token go there, and the state stays as it is
//   parents     taps of a token are its ancestors, then the history; an entry that is no earlier token is none
// A row with more tokens than its lines, windows or parents hold, a count or a position out of range is padding.
#pragma once

#include "causal_conv1d.h"

namespace gdn {

__device__ __forceinline__ int64_t bound(const CausalConv1dArgs& a, int64_t i) {
  const int64_t value = load_index(a.cu_seqlens, i);
  return value < 0 ? 0 : value > a.T ? a.T : value;
}

// Whether row n has a slot in the other pool too.
__device__ __forceinline__ bool also_live(const CausalConv1dArgs& a, int64_t n, int64_t column) {
  if (column < 0 || column >= a.also.columns) return false;
  const int64_t slot = load_index(a.also, n, column);
  return slot >= a.min_slot && slot < a.n_also;
}

template <class T, int VEC>
__device__ __forceinline__ void store_zeros(T* y, int64_t stride_t, int64_t tokens) {
  const Pack<T, VEC> zeros = {};
#pragma unroll 1
  for (int64_t t = 0; t < tokens; ++t) zeros.store(y + t * stride_t);
}

// A row as its index tensors describe it: made, it has its tokens and asks for the rest, which `follow` waits for.
struct Row {
  int64_t n, slot, bos, tokens;
  int64_t first;     // column of the history's first input
  int64_t position;  // in a ring: column of the first token
  bool live;
  IndexBits index{}, count{};

  __device__ __forceinline__ Row(const CausalConv1dArgs& a, int64_t i_c) {
    const bool varlen = a.cu_seqlens.words != 0;  // then row -1 is the tokens before all sequences, row N those after
    n = slot = varlen ? i_c - 1 : i_c;
    live = n >= 0 && n < a.N;
    if (live) {
      if (a.indices.words) index = index_bits(a.indices, n);
      if (a.accepted.words) count = index_bits(a.accepted, n);
    }
    bos = varlen && n >= 0 ? bound(a, n) : 0;
    tokens = (varlen && n < a.N ? bound(a, n + 1) : a.T) - bos;
  }

  __device__ __forceinline__ void follow(const CausalConv1dArgs& a, int H) {
    if (!live) return;
    if (a.indices.words) {
      slot = index_value(index, a.indices.words);
      live = slot >= a.min_slot && slot < a.state.slots;
    }
    first = a.line - H;
    if (a.accepted.words) {
      const int64_t accepted = index_value(count, a.accepted.words), most = a.line - H + 1;
      live = live && accepted >= 1 && accepted <= most && tokens <= most;
      first = accepted - 1;
    }
    if (a.positions.words) {
      position = load_index(a.positions, n);
      live = live && position >= 0;
      position = live ? position % a.line : 0;
      first = position - H + (position < H ? a.line : 0);
    }
    if (a.also.words) live = live && also_live(a, n, a.accepted.words ? first : 0);
    live = live && tokens <= a.most_tokens;
    if (a.windows.data) live = live && tokens <= a.window_tokens;
    if (a.parents.words) live = live && tokens <= a.parents.columns;
  }

  // Column of token t >= 0 in a ring.
  __device__ __forceinline__ int64_t in_ring(const CausalConv1dArgs& a, int64_t t) const {
    return (position + t) % a.line;
  }
};

// kWholeLines: the lines of a warp's 32 VEC channels, in shared memory as they are in memory, moved 16 bytes a lane. So
// the warp has one row, and lines with accepted counts, of which every thread replaces its own.
template <class T, int VEC>
struct StagedLines {
  static constexpr int MOST = 32 * VEC * kMostColumns * sizeof(T) / 16;
  uint4* warp;
  T* mine;  // channel c, column i at c * columns + i
  int columns;

  static __device__ __forceinline__ uint4* memory() {
    __shared__ uint4 lines[4 * MOST];
    return lines + threadIdx.x / 32 * MOST;
  }

  // line: element where this thread's first channel begins.
  __device__ __forceinline__ StagedLines(const LinesArg& a, int64_t line, int columns)
      : warp(memory()), columns(columns) {
    const int lane = threadIdx.x % 32;
    mine = reinterpret_cast<T*>(warp) + lane * VEC * columns;
    const uint4* from = at(a, line);
    for (int i = lane; i < packs(); i += 32) warp[i] = from[i];
    __syncwarp();
  }
  __device__ __forceinline__ int packs() const { return 32 * VEC * columns * static_cast<int>(sizeof(T)) / 16; }
  __device__ __forceinline__ uint4* at(const LinesArg& a, int64_t line) const {
    return reinterpret_cast<uint4*>(static_cast<T*>(a.data) + line - threadIdx.x % 32 * VEC * columns);
  }

  __device__ __forceinline__ float get(int c, int64_t i) const {
    return Number<T>::value(same_bits<typename Number<T>::Bits>(mine[c * columns + i]));
  }
  __device__ __forceinline__ void set(int c, int64_t i, float x) { mine[c * columns + i] = exact<T>(x); }

  __device__ __forceinline__ void store(const LinesArg& a, int64_t line) const {
    __syncwarp();
    uint4* to = at(a, line);
    for (int i = threadIdx.x % 32; i < packs(); i += 32) to[i] = warp[i];
  }
};

template <class T, int W, int VEC>
__device__ __forceinline__ void update_state(const CausalConv1dArgs& a, const Row& row, int64_t line, const T* x,
                                             const float (&h)[W - 1][VEC]) {
  constexpr int H = W - 1;
  auto put = [&](int64_t column, const float (&value)[1][VEC]) {
    store_columns<T>(a.state, line + column * a.state.stride_l, value);
  };
  float value[1][VEC];
  if (a.positions.words || a.accepted.words) {
    if (a.accepted.words) {
#pragma unroll
      for (int i = 1; i < H; ++i) {
#pragma unroll
        for (int c = 0; c < VEC; ++c) value[0][c] = h[i][c];
        put(i - 1, value);
      }
    }
#pragma unroll 1
    for (int64_t t = row.tokens > a.line ? row.tokens - a.line : 0; t < row.tokens; ++t) {
      load_pack(x + t * a.x_at.stride_t, value[0]);
      put(a.positions.words ? row.in_ring(a, t) : H - 1 + t, value);
    }
    return;
  }
#pragma unroll 1
  for (int64_t j = 0; j < a.line; ++j) {  // upwards: each column is read before it is written
    const int64_t from = j + row.tokens;
    if (from >= a.line)
      load_pack(x + (from - a.line) * a.x_at.stride_t, value[0]);
    else
      load_columns<T>(a.state, line + from * a.state.stride_l, value);
    put(j, value);
  }
}

template <class T, int W, int VEC, int U>
__device__ __forceinline__ void causal_conv1d_row(const CausalConv1dArgs& a, int64_t i_c, int64_t d) {
  constexpr int H = W - 1;
  Row row(a, i_c);
  if (row.tokens <= 0) return;
  const int64_t b = a.cu_seqlens.words ? 0 : row.n, x_stride = a.x_at.stride_t, y_stride = a.y_at.stride_t;
  const T* x =
      static_cast<const T*>(a.x) + b * a.x_at.stride_b + row.bos * x_stride + column(a.groups, a.x_at.stride_d, d);
  T* y = static_cast<T*>(a.y) + b * a.y_at.stride_b + row.bos * y_stride + d * a.y_at.stride_d;
  Pack<T, VEC> next[U];
  const auto ask = [&](int64_t t0) {
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (t0 + u < row.tokens) next[u].load(x + (t0 + u) * x_stride);
  };
  ask(0);
  Filter<T, W, VEC> filter;
  filter.load(a.filter, d);
  row.follow(a, H);
  if (!row.live) return store_zeros<T, VEC>(y, y_stride, row.tokens);

  float h[H][VEC];
  const int64_t line = row.slot * a.state.stride_n + d * a.state.stride_d;
  bool updated = a.windows.data != nullptr;  // then the state stays as it is
  if (VEC == 4 && sizeof(T) == 2 && a.state.layout == kWholeLines) {
    StagedLines<T, VEC> lines(a.state, line, a.line);
#pragma unroll
    for (int i = 0; i < H; ++i)
#pragma unroll
      for (int c = 0; c < VEC; ++c) h[i][c] = lines.get(c, row.first + i);
    if (!updated) {
#pragma unroll
      for (int i = 1; i < H; ++i)
#pragma unroll
        for (int c = 0; c < VEC; ++c) lines.set(c, i - 1, h[i][c]);
#pragma unroll 1
      for (int64_t t0 = 0; t0 < row.tokens; t0 += U) {
        if (t0 > 0) ask(t0);
#pragma unroll
        for (int u = 0; u < U; ++u)
#pragma unroll
          for (int c = 0; c < VEC; ++c)
            if (t0 + u < row.tokens) lines.set(c, H - 1 + t0 + u, next[u].at(c));
      }
      if (row.tokens > U) ask(0);
      lines.store(a.state, line);
    }
    updated = true;
  } else if (a.positions.words) {
#pragma unroll
    for (int i = 0; i < H; ++i) {
      const int64_t at = row.first + i - (row.first + i >= a.line ? a.line : 0);
      load_strided<T>(a.state.data, line + at * a.state.stride_l, a.state.stride_d, 0, a.state.fp32,
                      reinterpret_cast<float (&)[1][VEC]>(h[i]));
    }
  } else {
    load_columns<T>(a.state, line + row.first * a.state.stride_l, h);
  }
  if (!updated) update_state<T, W, VEC>(a, row, line, x, h);

  const int64_t window = a.window_indices.words ? load_index(a.window_indices, row.n) : row.n;
  const bool keeps = a.windows.data && window >= 0 && window < a.windows.slots;
  auto keep = [&](int64_t t, const float (&inputs)[H][VEC]) {
    if (keeps)
      store_columns<T>(a.windows, window * a.windows.stride_n + t * a.window_stride_t + d * a.windows.stride_d, inputs);
  };

  if (a.parents.words) {
#pragma unroll 1
    for (int64_t t = 0; t < row.tokens; ++t) {
      float taps[H][VEC], past[H][VEC];  // past: the history's inputs not yet taken, the newest last
#pragma unroll
      for (int i = 0; i < H; ++i)
#pragma unroll
        for (int c = 0; c < VEC; ++c) past[i][c] = h[i][c];
      int64_t node = t;
#pragma unroll
      for (int i = H - 1; i >= 0; --i) {
        const int64_t up = node > 0 ? load_index(a.parents, row.n, node) : -1;
        node = up < node ? up : -1;
        if (node >= 0) {
          load_pack(x + node * x_stride, taps[i]);
          continue;
        }
#pragma unroll
        for (int c = 0; c < VEC; ++c) {
          taps[i][c] = past[H - 1][c];
#pragma unroll
          for (int m = H - 1; m > 0; --m) past[m][c] = past[m - 1][c];
        }
      }
      Pack<T, VEC> now;
      now.load(x + t * x_stride);
      filter.token(now, taps, a.filter.activation).store(y + t * y_stride);
      keep(t, taps);
    }
    return;
  }
#pragma unroll 1
  for (int64_t t0 = 0; t0 < row.tokens; t0 += U) {
    if (t0 > 0) ask(t0);
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (t0 + u >= row.tokens) break;
      filter.token(next[u], h, a.filter.activation).store(y + (t0 + u) * y_stride);
      keep(t0 + u, h);
    }
  }
}

}  // namespace gdn
