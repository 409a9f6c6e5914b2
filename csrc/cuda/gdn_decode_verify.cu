// A GDN layer between its projections for rows of up to 8 tokens, in one launch, on states of K = V = 128: as
// gdn_decode_step.cu, with the rule of short_rows.h and the convolution's histories of speculative decoding (see
// causal_conv1d_rows.h).
//
// A block has one value head of one row, and the blocks of a key head are a cluster: each works out q and k for itself,
// and the first writes their new history once all have read the old one. Where there are no clusters, or more than 8
// value heads share a key head, one block has them, one after another.
//
// Compiles for the CPU with tests/emulated_warp.h.
#include "gated_norm.h"
#include "gdn_decode_verify.h"
#include "overlap.h"
#include "short_rows.h"

namespace gdn {

// One channel of a row's convolution. Inputs are counted by their distance from a token: 0 is its own.
struct Channel {
  static constexpr int kTaps = 4;
  float weight[kTaps], bias, history[kTaps - 1];  // history: the newest first
  int64_t x, line;                                // where the row's first input, and its line, are

  __device__ __forceinline__ void load(const GdnDecodeStepArgs& a, const ShortRow& row, int64_t slot, int64_t first,
                                       int64_t d) {
    const FilterArg& f = a.filter;
    const int32_t dtype = a.rule.dtype;
    x = row.row * a.x.stride_r + column(a.groups, 1, d);
    line = slot * a.lines.stride_n + d * a.lines.stride_d;
    uint32_t w[kTaps], h[kTaps - 1], b = 0;
#pragma unroll
    for (int i = 0; i < kTaps - 1; ++i)
      h[i] = i < a.W - 1 ? load_bits(a.lines.data, line + (first + a.W - 2 - i) * a.lines.stride_l, stored(a)) : 0;
#pragma unroll
    for (int i = 0; i < kTaps; ++i)
      w[i] =
          i < a.W ? load_bits(f.weight, d * f.stride_d + (a.W - 1 - i) * f.stride_w, f.weight_fp32 ? kFP32 : dtype) : 0;
    if (f.bias) b = load_bits(f.bias, d * f.bias_stride, f.bias_fp32 ? kFP32 : dtype);
#pragma unroll
    for (int i = 0; i < kTaps - 1; ++i) history[i] = bits_value(h[i], stored(a));
#pragma unroll
    for (int i = 0; i < kTaps; ++i) weight[i] = bits_value(w[i], f.weight_fp32 ? kFP32 : dtype);
    bias = bits_value(b, f.bias_fp32 ? kFP32 : dtype);
  }

  static __device__ __forceinline__ int32_t stored(const GdnDecodeStepArgs& a) {
    return a.lines.fp32 ? kFP32 : a.rule.dtype;
  }
  __device__ __forceinline__ float input(const GdnDecodeStepArgs& a, int t) const {
    return bits_value(load_bits(a.x.data, x + t * a.x.stride_t, a.rule.dtype), a.rule.dtype);
  }

  // The inputs that token t sees: those of the tokens before it, then the history's.
  __device__ __forceinline__ void see(const GdnDecodeStepArgs& a, const int* parent, int t, float (&y)[kTaps]) const {
    int node = t, past = 0;
    y[0] = input(a, t);
#pragma unroll
    for (int i = 1; i < kTaps; ++i) {
      if (node >= 0) node = parent[node];
      if (node >= 0)
        y[i] = input(a, node);
      else
        y[i] = past == 0 ? history[0] : past == 1 ? history[1] : history[2], ++past;
    }
  }

  __device__ __forceinline__ float result(const GdnDecodeStepArgs& a, const float (&y)[kTaps]) const {
    float sum = bias;
#pragma unroll
    for (int i = kTaps - 1; i >= 0; --i)
      if (i < a.W) sum = fmaf(weight[i], y[i], sum);
    return a.filter.activation == kSilu ? silu(sum) : sum;
  }

  // What token t sees, in the window kept after it; window: the row's, or negative.
  __device__ __forceinline__ void keep(const GdnDecodeVerifyArgs& args, int64_t window, int t, int64_t d,
                                       const float (&y)[kTaps]) const {
    if (window < 0) return;
    const GdnDecodeStepArgs& a = args.layer;
    const LinesArg& to = args.windows;
    const int64_t at = window * to.stride_n + t * args.window_stride_t + d * to.stride_d;
#pragma unroll
    for (int i = 0; i < kTaps - 1; ++i)
      if (i < a.W - 1) store_rounded(to.data, at + (a.W - 2 - i) * to.stride_l, y[i], to.fp32 ? kFP32 : a.rule.dtype);
  }

  // The line after the row's tokens.
  __device__ __forceinline__ void update(const GdnDecodeStepArgs& a, int tokens) const {
    const int H = a.W - 1;
    const auto put = [&](int64_t i, float value) {
      store_rounded(a.lines.data, line + i * a.lines.stride_l, value, stored(a));
    };
    const bool accepted = a.rule.spec.accepted.words != 0;
    const int kept = accepted ? H - 1 : H - tokens;  // inputs of the history
#pragma unroll
    for (int i = kTaps - 2; i >= 0; --i)
      if (i < kept) put(kept - 1 - i, history[i]);
#pragma unroll 1
    for (int t = accepted || tokens < H ? 0 : tokens - H; t < tokens; ++t)
      put((accepted ? H - 1 : H - tokens) + t, input(a, t));
  }
};

template <class S, bool VFIRST>
__device__ __forceinline__ void gdn_decode_verify(const GdnDecodeVerifyArgs& args) {
  constexpr int K = 128, V = K, WARPS = 8, MOST = kMostLayerTokens;
  using State = HeadState<S, VFIRST, K, V, WARPS>;
  constexpr int THREADS = State::THREADS;
  static_assert(2 * K == THREADS);               // each has a channel of q or k
  __shared__ float z[2 * MOST * K];              // the vectors
  __shared__ float sums[State::PARTS * NT * V];  // read-outs
  __shared__ float u[MOST * V], o[MOST * V];
  __shared__ Tokens<MOST> shared;

  const GdnDecodeStepArgs& a = args.layer;
  const FusedRecurrentArgs& rule = a.rule;
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, group = rule.group;
  const int32_t dtype = rule.dtype;
  const bool clusters = a.cluster > 1;
  const auto unit_of = [&](uint32_t block) { return divide(block, a.by_cluster); };
  const uint32_t rank = blockIdx.x - unit_of(blockIdx.x) * a.cluster, n = divide(unit_of(blockIdx.x), a.key_heads);
  const uint32_t h = unit_of(blockIdx.x) - n * a.H;
  const int begin = static_cast<int>(rank), end = clusters ? begin + 1 : group;  // value heads of the group
  const auto tile = [&](uint32_t h, int j) { return static_cast<int64_t>(h * group + j) * rule.KV; };

  const auto prefetch = [&](uint32_t block, int first, int threads) {
    const uint32_t unit = unit_of(block), n = divide(unit, a.key_heads);
    int64_t slot;
    if (n < static_cast<uint32_t>(rule.N) && ShortRow::start(rule, n, slot))
      State::prefetch(static_cast<const S*>(rule.h0) + slot * rule.h0_stride +
                          tile(unit - n * a.H, static_cast<int>(block - unit * a.cluster)),
                      V, first, threads);
  };
  if (blockIdx.x < a.ahead) prefetch(blockIdx.x, tid, THREADS);
  follow_kernel_ahead();

  const ShortRow row(rule, n);
  const int tokens = row.tokens;
  const int64_t line = row.outside ? -1 : load_index(a.conv_slots, n);
  const auto store_y = [&](int64_t t, int j, int v, float y) {  // t counts from the row's first token
    const int64_t at = ((row.first(rule.T) + t) * rule.HV + h * group + j) * V + v;
    store_result(a.y, at, y, a.out_scale, dtype);
  };
  if (!row.live || line < rule.min_slot || line >= a.lines.slots)  // padding; the same for all blocks of a cluster
    return row.each_dead(rule.T, (end - begin) * V,
                         [&](int64_t t, int column) { store_y(t, begin + column / V, column % V, 0.0f); });
  if (tokens == 0) return;

  const SpecArgs& spec = rule.spec;
  const int64_t first = spec.accepted.words ? load_index(spec.accepted, n) - 1 : args.line - (a.W - 1);
  int64_t window = -1;
  if (args.windows.data) {
    window = spec.steps_slots.words ? load_index(spec.steps_slots, n) : n;
    if (window >= args.windows.slots) window = -1;
  }
  const bool owner = rank == 0;
  const int64_t key_channel = (tid < K ? a.H * K : -K) + static_cast<int64_t>(h) * K + tid;  // of k, then of q
  shared.load_parents(spec, row);
  __syncthreads();

#pragma unroll 1
  for (int j = begin; j < end; ++j) {
    const uint32_t hv = h * group + j;
    State state;
    const auto load_state = [&] {
      state.load(static_cast<const S*>(rule.h0) + row.slot * rule.h0_stride + tile(h, j), V);
    };
    load_state();
    if (j == begin && tid >= THREADS / 2 && blockIdx.x + a.ahead < gridDim.x)
      prefetch(blockIdx.x + a.ahead, tid - THREADS / 2, THREADS / 2);

    // v where o will be, and vectors as the convolution gives them, then as the rule uses them.
    const auto convolve = [&](int64_t d, bool keeps, bool updates, float* to, bool vectors) {
      Channel channel;
      channel.load(a, row, line, first, d);
#pragma unroll 1
      for (int t = 0; t < tokens; ++t) {
        float y[Channel::kTaps];
        channel.see(a, shared.parent, t, y);
        to[(vectors ? vector_of(t) : t) * K] = channel.result(a, y);
        if (keeps) channel.keep(args, window, t, d, y);
      }
      if (updates && !args.windows.data) channel.update(a, tokens);
    };
    if (tid < V)
      convolve(2 * static_cast<int64_t>(a.H) * K + static_cast<int64_t>(hv) * V + tid, true, true, o + tid, false);
    if (j == begin) {
      float* const mine = z + (tid < K ? 0 : NT * K) + tid % K;
      convolve(key_channel, owner, owner && !clusters, mine, true);
      for (int t = tokens; t % NT != 0; ++t) mine[vector_of(t) * K] = 0;
      if (clusters) cluster_arrive_relaxed();  // this block has read the history
      __syncthreads();
#pragma unroll 1
      for (int c = warp; c / kVectors * NT < tokens; c += WARPS) {
        Vector<K> vector;
        float y[Vector<K>::N];
#pragma unroll
        for (int i = 0; i < Vector<K>::N; ++i) vector.bits[i] = __float_as_uint(z[c * K + lane + 32 * i]);
        vector.values(y, rule.l2norm, c % kVectors < NT ? 1.0f : rule.scale, kFP32);
#pragma unroll
        for (int i = 0; i < Vector<K>::N; ++i) z[c * K + lane + 32 * i] = y[i];
      }
    }
    shared.load_gates(rule, row, hv, h);
    __syncthreads();

    shared.template relate<K, WARPS>(z, tokens);
    state.unpack();
#pragma unroll 1
    for (int t0 = 0; t0 < tokens; t0 += NT) {
      float reads[2][NT];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        state.template read_out<NT>(z + (2 * t0 + c * NT) * K, sums);
        __syncthreads();
        if (tid < V) {
#pragma unroll
          for (int i = 0; i < NT; ++i) reads[c][i] = State::template read<NT>(sums, i, tid);
        }
        __syncthreads();
      }
      if (tid >= V) continue;
      shared.template solve<V>(
          t0, tokens, reads[0], reads[1], u, [&](int i) { return o[(t0 + i) * V + tid]; },
          [&](int t, float y) { o[t * V + tid] = y; });
    }
    __syncthreads();

    // A token a warp: its norm.
    const int32_t weights = a.weight_fp32 ? kFP32 : dtype;
#pragma unroll 1
    for (int t = warp; t < tokens; t += WARPS) {
      float y[V / 32], gate[V / 32], sum = 0;
      const int64_t z_at = row.row * a.z.stride_r + t * a.z.stride_t + h * a.z.stride_h + j * V + lane;
#pragma unroll
      for (int i = 0; i < V / 32; ++i) {
        y[i] = o[t * V + lane + 32 * i];
        gate[i] = gate_value(y[i], bits_value(load_bits(a.z.data, z_at + 32 * i, dtype), dtype), a.norm_activation);
        if (a.gate_first) y[i] *= gate[i], gate[i] = 1.0f;
        sum = fmaf(y[i], y[i], sum);
      }
      const float factor = rsqrtf(warp_sum(sum) / V + a.eps);
#pragma unroll
      for (int i = 0; i < V / 32; ++i) {
        const float w = bits_value(load_bits(a.weight, lane + 32 * i, weights), weights);
        store_y(t, j, lane + 32 * i, normed(y[i], factor, w, gate[i], dtype, a.hf_rounding, a.weight_fp32));
      }
    }

    shared.template store_states<S, K, V>(rule, row, tile(h, j), z, u, state, [&] {
      load_state();
      state.unpack();
    });
    if (!clusters) __syncthreads();  // before the next head's numbers
  }
  if (!clusters || !owner) return;
  cluster_wait();
  if (args.windows.data) return;
  Channel key;
  key.load(a, row, line, first, key_channel);
  key.update(a, tokens);
}

}  // namespace gdn

#define GDN_KERNEL(symbol, S, VFIRST)                                                                               \
  extern "C" __global__ void __launch_bounds__(256, 2) symbol(const __grid_constant__ gdn::GdnDecodeVerifyArgs a) { \
    gdn::gdn_decode_verify<S, VFIRST>(a);                                                                           \
  }
GDN_VARIANTS(GDN_KERNEL)
