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
// Compiles for the CPU with tests/emulated_warp.h.
#include "causal_conv1d.h"
#include "packs.h"
#include "runtime/activation.h"

namespace gdn {

// A chunk: sequence n (-1 and N: tokens of none), batch row b, the sequence's tokens [bos, eos), and its first token.
struct Chunk {
  int64_t n, b, bos, eos, t;
};

__device__ __forceinline__ int64_t bound(const CausalConv1dArgs& a, int64_t i) {
  const uint32_t low = load_word(a.cu_seqlens.low + i * a.cu_seqlens.stride);
  const uint32_t high = load_word(a.cu_seqlens.high + i * a.cu_seqlens.stride);
  const int64_t value = index_value({low, high}, a.cu_seqlens.words);
  return value < 0 ? 0 : value > a.T ? a.T : value;
}

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

// x * sigmoid(x). Without scaling of denormal numbers, which only lets results below 1e-37 be zero.
__device__ __forceinline__ float silu(float x) {
#ifdef __CUDACC_RTC__
  float e, r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -1.4426950408889634f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
  return x * r;
#else
  return x / (1.0f + expf(-x));
#endif
}

// ---- states ----------------------------------------------------------------------------------------------------

// N columns of the line of one slot, for VEC channels from `at` on.
template <class T, int VEC, int N>
__device__ __forceinline__ void load_columns(const CausalConv1dArgs& a, int64_t at, float (&x)[N][VEC]) {
  const T* p = static_cast<const T*>(a.state) + at;
  if (VEC > 1 && a.state_layout == kChannelsLast) {
#pragma unroll
    for (int i = 0; i < N; ++i) load_pack(p + i * a.state_stride_l, x[i]);
  } else if (VEC > 2 && N > 1 && a.state_layout == kPackedLines) {
    load_lines<T, VEC, N>(p, x);
  } else {
    load_strided<T>(a.state, at, a.state_stride_d, a.state_stride_l, a.state_fp32, x);
  }
}

template <class T, int VEC, int N>
__device__ __forceinline__ void store_columns(const CausalConv1dArgs& a, int64_t at, const float (&x)[N][VEC]) {
  T* p = static_cast<T*>(a.state) + at;
  if (VEC > 1 && a.state_layout == kChannelsLast) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      Pack<T, VEC> pack;
      pack.set_exact(x[i]);
      pack.store(p + i * a.state_stride_l);
    }
  } else if (VEC > 2 && N > 1 && a.state_layout == kPackedLines) {
    store_lines<T, VEC, N>(p, x);
  } else {
    store_strided<T>(a.state, at, a.state_stride_d, a.state_stride_l, a.state_fp32, x);
  }
}

// ---- the kernel ------------------------------------------------------------------------------------------------

template <class T, int W, int VEC, int THREADS, int U>
__device__ __forceinline__ void causal_conv1d(const CausalConv1dArgs& a) {
  constexpr int H = W - 1;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  const int64_t packs = a.D / VEC, i_c = item / packs, d = (item - i_c * packs) * VEC;
  if (i_c >= a.chunks) return;
  const Chunk chunk = find_chunk(a, i_c);
  const int64_t left = chunk.eos - chunk.t, BT = int64_t{1} << a.log_BT;
  if (left <= 0) return;
  const int tokens = static_cast<int>(left < BT ? left : BT);

  const T* x = static_cast<const T*>(a.x) + chunk.b * a.x_at.stride_b + chunk.t * a.x_at.stride_t + d * a.x_at.stride_d;
  T* y = static_cast<T*>(a.y) + chunk.b * a.y_at.stride_b + chunk.t * a.y_at.stride_t + d * a.y_at.stride_d;
  int64_t slot = chunk.n;
  bool live = slot >= 0 && slot < a.N;
  if (live && a.indices.words) {
    const int64_t i = slot * a.indices.stride;
    slot = index_value({load_word(a.indices.low + i), load_word(a.indices.high + i)}, a.indices.words);
    live = slot >= a.min_slot && slot < a.slots;
  }
  if (!live) {
    const Pack<T, VEC> zeros = {};
#pragma unroll 1
    for (int t = 0; t < tokens; ++t) zeros.store(y + t * a.y_at.stride_t);
    return;
  }

  Pack<T, VEC> next[U];
  int64_t x_at = 0, y_at = 0;  // of the next token to ask for, and to store
#pragma unroll
  for (int u = 0; u < U; ++u) {
    if (u < tokens) next[u].load(x + x_at);
    x_at = advance(x_at, a.x_at.stride_t);
  }

  float w[W][VEC], bias[1][VEC] = {};
  if (VEC > 2 && a.weight_packed)
    load_lines<T, VEC, W>(static_cast<const T*>(a.weight) + d * W, w);
  else
    load_strided<T>(a.weight, d * a.weight_stride_d, a.weight_stride_d, a.weight_stride_w, a.weight_fp32, w);
  if (a.bias) load_strided<T>(a.bias, d * a.bias_stride, a.bias_stride, 0, a.bias_fp32, bias);

  // The window: the W - 1 inputs before this chunk.
  float h[H][VEC] = {};
  const int64_t line = slot * a.state_stride_n + d * a.state_stride_d;  // of the state, then its history
  const int64_t window = line + (a.line - H) * a.state_stride_l;
  const bool first = chunk.t == chunk.bos;
  const bool history = a.state && (a.has_state ? a.has_state[chunk.n * a.has_state_stride] != 0 : a.history != 0);
  if (!first) {
#pragma unroll
    for (int i = 0; i < H; ++i) load_pack(x + (i - H) * a.x_at.stride_t, h[i]);
  } else if (history) {
    load_columns<T>(a, window, h);
  }

  auto token = [&](const Pack<T, VEC>& now) {
    float sum[VEC];
#pragma unroll
    for (int c = 0; c < VEC; ++c) {
      const float newest = now.at(c);
      sum[c] = bias[0][c];
#pragma unroll
      for (int i = 0; i < H; ++i) sum[c] = fmaf(w[i][c], h[i][c], sum[c]);
      sum[c] = fmaf(w[H][c], newest, sum[c]);
#pragma unroll
      for (int i = 0; i + 1 < H; ++i) h[i][c] = h[i + 1][c];
      h[H - 1][c] = newest;
    }
    if (a.activation == kSilu) {
#pragma unroll
      for (int c = 0; c < VEC; ++c) sum[c] = silu(sum[c]);
    }
    Pack<T, VEC> pack;
    pack.set(sum);
    pack.store(y + y_at);
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
      token(now);
    }
  }
#pragma unroll 1
  for (; t < tokens; ++t) {
    token(next[0]);
#pragma unroll
    for (int u = 0; u + 1 < U; ++u) next[u] = next[u + 1];
  }
  if (!first || !a.state) return;

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
      load_columns<T>(a, line + (j + left) * a.state_stride_l, older);
    store_columns<T>(a, line + j * a.state_stride_l, older);
  }
  store_columns<T>(a, window, h);
}

}  // namespace gdn

#define GDN_KERNEL(symbol, T, W, VEC, THREADS, U)                                                                 \
  extern "C" __global__ void __launch_bounds__(THREADS) symbol(const __grid_constant__ gdn::CausalConv1dArgs a) { \
    gdn::causal_conv1d<T, W, VEC, THREADS, U>(a);                                                                 \
  }
GDN_VARIANTS(GDN_KERNEL)
