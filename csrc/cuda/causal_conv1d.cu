// y_t = act(bias + sum_{i<W} w[:, i] x_{t-W+1+i}) for every sequence, and its new history, in one launch.
//
// A thread computes VEC channels of one chunk of up to 2^log_BT tokens: it walks along the tokens with the last W - 1
// inputs in registers, and always has the next U tokens on their way while it works on the present ones. Threads next
// to each other have channels next to each other. Chunks are found on the device (find_chunk of triton_src/common.py),
// so the grid depends on shapes alone. Sums in fp32, taps from the oldest to the newest: a token's result does not
// depend on where its chunk starts.
//
// The thread of a sequence's first chunk alone touches the state of its channels: it reads the history and, after its
// tokens, writes the new one, whose inputs it takes from x if the sequence has further chunks. So nobody reads a
// history that another thread may have replaced.
//
// ROLE: kWalk is that; kMarked also looks at seq_idx and stores windows at checkpoints on the way; kRows is in
// causal_conv1d_rows.h.
//
// Compiles for the CPU with tests/emulated_warp.h.
#include "causal_conv1d_rows.h"
#include "overlap.h"

namespace gdn {

// A chunk: sequence n (-1 and N: tokens of none), batch row b, the sequence's tokens [bos, eos), and its first token.
struct Chunk {
  int64_t n, b, bos, eos, t;
};

__device__ __forceinline__ Chunk find_chunk(const CausalConv1dArgs& a, int64_t slot) {
  if (a.cu_seqlens.words == 0) {
    const int64_t NT = (a.T + (int64_t{1} << a.log_BT) - 1) >> a.log_BT, n = slot / NT;
    return {n, n, 0, a.T, (slot - n * NT) << a.log_BT};
  }
  int64_t low = -1, high = a.N;
#pragma unroll 1
  while (low < high) {
    const int64_t middle = (low + high + 1) >> 1;
    if ((bound(a, middle) >> a.log_BT) + middle + 1 <= slot)
      low = middle;
    else
      high = middle - 1;
  }
  const int64_t bos = low < 0 ? 0 : bound(a, low), eos = low >= a.N ? a.T : bound(a, low + 1);
  return {low, 0, bos, eos, bos + ((slot - (low < 0 ? 0 : (bos >> a.log_BT) + low + 1)) << a.log_BT)};
}

// What a marked walk looks for at each token: where packed samples change, and where windows are kept.
template <class T, int W, int VEC>
struct Marks {
  static constexpr int H = W - 1;
  int64_t id;   // sample of the token before
  int64_t due;  // tokens of the chunk up to the next checkpoint

  static __device__ __forceinline__ int64_t prefix(const CausalConv1dArgs& a, int64_t n) {
    const int64_t given = a.prefix_lens.words ? load_index(a.prefix_lens, n) : 0;
    return given > 0 ? given : 0;
  }

  // At the chunk's first token, before which come the inputs h.
  __device__ __forceinline__ void start(const CausalConv1dArgs& a, const Chunk& chunk, float (&h)[H][VEC]) {
    if (a.seq_idx.words && chunk.t > chunk.bos) {
      id = load_index(a.seq_idx, chunk.b, chunk.t - H);
#pragma unroll
      for (int i = 1; i < H; ++i) sample(a, chunk, i - H, h, i);
    }
    if (a.checkpoints.data)
      due = a.checkpoint_every - (prefix(a, chunk.n) + (chunk.t - chunk.bos)) % a.checkpoint_every;
  }

  // Of token t of the chunk: whether the sample is one; the older inputs h[0 .. n) are zeros if it has just begun.
  __device__ __forceinline__ bool sample(const CausalConv1dArgs& a, const Chunk& chunk, int t, float (&h)[H][VEC],
                                         int n) {
    const int64_t now = load_index(a.seq_idx, chunk.b, chunk.t + t);
    if (now != id || chunk.t + t == chunk.bos) {
#pragma unroll
      for (int i = 0; i < H; ++i)
#pragma unroll
        for (int c = 0; c < VEC; ++c)
          if (i < n) h[i][c] = 0;
    }
    id = now;
    return now >= 0;
  }

  // After t tokens of the chunk: checkpoint j is the j-th multiple of checkpoint_every in this call.
  __device__ __forceinline__ void passed(const CausalConv1dArgs& a, const Chunk& chunk, int t, int64_t d,
                                         const float (&h)[H][VEC]) {
    if (t != due) return;
    due += a.checkpoint_every;
    const int64_t before = prefix(a, chunk.n), every = a.checkpoint_every;
    const int64_t j = (before + (chunk.t - chunk.bos) + t) / every - before / every - 1;
    if (j >= a.checkpoint_indices.columns) return;
    const int64_t slot = load_index(a.checkpoint_indices, chunk.n, j);
    if (slot >= a.min_slot && slot < a.checkpoints.slots)
      store_columns<T>(a.checkpoints, slot * a.checkpoints.stride_n + d * a.checkpoints.stride_d, h);
  }
};

template <class T, int W, int VEC, int ROLE, int THREADS, int U>
__device__ __forceinline__ void causal_conv1d(const CausalConv1dArgs& a) {
  constexpr int H = W - 1;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  const int64_t packs = a.D / VEC, i_c = item / packs, d = (item - i_c * packs) * VEC;
  if (i_c >= a.chunks) return;
  if constexpr (ROLE == kRows) return causal_conv1d_row<T, W, VEC, U>(a, i_c, d);

  const Chunk chunk = find_chunk(a, i_c);
  const int64_t left = chunk.eos - chunk.t, BT = int64_t{1} << a.log_BT;
  if (left <= 0) return;
  const int tokens = static_cast<int>(left < BT ? left : BT);

  const T* x = static_cast<const T*>(a.x) + chunk.b * a.x_at.stride_b + chunk.t * a.x_at.stride_t +
               column(a.groups, a.x_at.stride_d, d);
  T* y = static_cast<T*>(a.y) + chunk.b * a.y_at.stride_b + chunk.t * a.y_at.stride_t + d * a.y_at.stride_d;
  int64_t slot = chunk.n;
  bool live = slot >= 0 && slot < a.N;
  if (live && a.indices.words) {
    slot = load_index(a.indices, slot);
    live = slot >= a.min_slot && slot < a.state.slots;
  }
  if constexpr (ROLE == kMarked) live = live && (!a.also.words || also_live(a, chunk.n, 0));
  if (!live) return store_zeros<T, VEC>(y, a.y_at.stride_t, tokens);

  Pack<T, VEC> next[U];
  int64_t x_at = 0, y_at = 0;  // of the next token to ask for, and to store
#pragma unroll
  for (int u = 0; u < U; ++u) {
    if (u < tokens) next[u].load(x + x_at);
    x_at = advance(x_at, a.x_at.stride_t);
  }
  Filter<T, W, VEC> filter;
  filter.load(a.filter, d);

  // The window: the W - 1 inputs before this chunk.
  float h[H][VEC] = {};
  const int64_t line = slot * a.state.stride_n + d * a.state.stride_d;  // of the state, then its history
  const int64_t window = line + (a.line - H) * a.state.stride_l;
  const bool first = chunk.t == chunk.bos;
  const bool history = a.state.data && (a.has_state ? a.has_state[chunk.n * a.has_state_stride] != 0 : a.history != 0);
  if (!first) {
#pragma unroll
    for (int i = 0; i < H; ++i) load_pack(x + (i - H) * a.x_at.stride_t, h[i]);
  } else if (history) {
    load_columns<T>(a.state, window, h);
  }

  [[maybe_unused]] Marks<T, W, VEC> marks;
  if constexpr (ROLE == kMarked) marks.start(a, chunk, h);
  auto token = [&](const Pack<T, VEC>& now, [[maybe_unused]] int t) {
    if constexpr (ROLE == kMarked) {
      const bool counts = a.seq_idx.words == 0 || marks.sample(a, chunk, t, h, H);
      Pack<T, VEC> result = filter.token(now, h, a.filter.activation);
      if (!counts) result = {};
      result.store(y + y_at);
      if (a.checkpoints.data) marks.passed(a, chunk, t + 1, d, h);
    } else {
      filter.token(now, h, a.filter.activation).store(y + y_at);
    }
    y_at = advance(y_at, a.y_at.stride_t);
  };
  int t = 0;
#pragma unroll 1
  for (; t + U <= tokens; t += U) {
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const Pack<T, VEC> now = next[u];
      if (t + U + u < tokens) next[u].load(x + x_at);
      x_at = advance(x_at, a.x_at.stride_t);
      token(now, t + u);
    }
  }
#pragma unroll 1
  for (; t < tokens; ++t) {
    token(next[0], t);
#pragma unroll
    for (int u = 0; u + 1 < U; ++u) next[u] = next[u + 1];
  }
  if (!first || !a.state.data || (ROLE == kMarked && a.reads_only)) return;

  // The new line: the last of (old line, the sequence's inputs). The window is in h unless other chunks follow.
  if (left > BT) {
#pragma unroll
    for (int i = 0; i < H; ++i) load_pack(x + (left - H + i) * a.x_at.stride_t, h[i]);
  }
#pragma unroll 1
  for (int j = 0; j < a.line - H; ++j) {  // columns older than the window; upwards: each is read before it is written
    float older[1][VEC] = {};
    if (j + left >= a.line)
      load_pack(x + (j + left - a.line) * a.x_at.stride_t, older[0]);
    else if (history)
      load_columns<T>(a.state, line + (j + left) * a.state.stride_l, older);
    store_columns<T>(a.state, line + j * a.state.stride_l, older);
  }
  store_columns<T>(a.state, window, h);
}

}  // namespace gdn

#define GDN_KERNEL(symbol, T, W, VEC, ROLE, THREADS, U)                                                           \
  extern "C" __global__ void __launch_bounds__(THREADS) symbol(const __grid_constant__ gdn::CausalConv1dArgs a) { \
    gdn::follow_kernel_ahead();                                                                                   \
    gdn::causal_conv1d<T, W, VEC, ROLE, THREADS, U>(a);                                                           \
  }
GDN_VARIANTS(GDN_KERNEL)
