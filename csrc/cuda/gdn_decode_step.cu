// A GDN layer between its projections for one token a row, in one launch, on states of K = V = 128:
//   convolution step and SiLU, gates, l2norm, delta rule, gated RMS norm
// Nothing is rounded on the way but states, at their stores.
//
// CLUSTER: a cluster has the value heads of a key head, a block one of them (1) or, for few rows, half of its columns
// of V (2). Each block works out q and k for itself; the first writes their new history once all have read the old one,
// and the halves of a head exchange their sums of squares. 0, which every arch can do: one block has the heads, one
// after another. States: head_state.h; the rule: fused_recurrent_step.cu.
//
// Compiles for the CPU with tests/emulated_warp.h.
#include "gated_norm.h"
#include "gdn_decode_step.h"
#include "head_state.h"
#include "overlap.h"
#include "tokens.h"

namespace gdn {

// One channel's convolution, as it is in memory.
template <class T>
struct Channel {
  static constexpr int kTaps = 4;
  static constexpr int32_t dtype = Number<T>::code;
  uint32_t x, bias, history[kTaps - 1], weight[kTaps];
  int64_t line;

  __device__ __forceinline__ void load_inputs(const GdnDecodeStepArgs& a, uint32_t n, int64_t d) {
    const FilterArg& f = a.filter;
    x = load_bits(a.x.data, n * a.x.stride_r + column(a.groups, 1, d), dtype);
    bias = f.bias ? load_bits(f.bias, d * f.bias_stride, f.bias_fp32 ? kFP32 : dtype) : 0;
    if (f.packed && a.W == kTaps) {
      const auto* p = static_cast<const uint32_t*>(f.weight) + d * 2;
      const uint32_t low = p[0], high = p[1];
      weight[0] = low & 0xffff, weight[1] = low >> 16, weight[2] = high & 0xffff, weight[3] = high >> 16;
    } else {
#pragma unroll
      for (int i = 0; i < kTaps; ++i)
        weight[i] = i < a.W ? load_bits(f.weight, d * f.stride_d + i * f.stride_w, f.weight_fp32 ? kFP32 : dtype) : 0;
    }
  }

  __device__ __forceinline__ void load_history(const GdnDecodeStepArgs& a, int64_t slot, int64_t d) {
    line = slot * a.lines.stride_n + d * a.lines.stride_d;
#pragma unroll
    for (int i = 0; i < kTaps - 1; ++i)
      history[i] = i < a.W - 1 ? load_bits(a.lines.data, line + i * a.lines.stride_l, line_dtype(a)) : 0;
  }

  // The new history: the old one without its first input, then x.
  __device__ __forceinline__ void store_history(const GdnDecodeStepArgs& a) const {
    const bool same = line_dtype(a) == dtype;
    const uint32_t newest = same ? x : __float_as_uint(bits_value(x, dtype));
#pragma unroll
    for (int i = 0; i < kTaps - 1; ++i) {
      if (i >= a.W - 1) break;
      const uint32_t bits = i == a.W - 2 ? newest : i + 1 < kTaps - 1 ? history[i + 1] : 0;
      const int64_t at = line + i * a.lines.stride_l;
      if (line_dtype(a) == kFP32)
        static_cast<uint32_t*>(a.lines.data)[at] = bits;
      else
        static_cast<uint16_t*>(a.lines.data)[at] = static_cast<uint16_t>(bits);
    }
  }

  __device__ __forceinline__ float result(const GdnDecodeStepArgs& a) const {
    const int32_t weights = a.filter.weight_fp32 ? kFP32 : dtype;
    float sum = a.filter.bias ? bits_value(bias, a.filter.bias_fp32 ? kFP32 : dtype) : 0.0f;
#pragma unroll
    for (int i = 0; i < kTaps; ++i) {
      if (i >= a.W) break;
      const float input =
          i == a.W - 1 ? bits_value(x, dtype) : bits_value(history[i < kTaps - 1 ? i : 0], line_dtype(a));
      sum = fmaf(bits_value(weight[i], weights), input, sum);
    }
    return a.filter.activation == kSilu ? silu(sum) : sum;
  }

  static __device__ __forceinline__ int32_t line_dtype(const GdnDecodeStepArgs& a) {
    return a.lines.fp32 ? kFP32 : dtype;
  }
};

// Asks for the line of row n's channel d, and what is to come to it, to be brought to L2.
__device__ __forceinline__ void prefetch_channel(const GdnDecodeStepArgs& a, uint32_t n, int64_t slot, int64_t d) {
  prefetch_line(static_cast<const uint16_t*>(a.x.data) + n * a.x.stride_r + column(a.groups, 1, d));
  const int64_t at = slot * a.lines.stride_n + d * a.lines.stride_d;
  prefetch_line(static_cast<const char*>(a.lines.data) + at * (a.lines.fp32 ? 4 : 2));
}

// What a block has: row n, key head h, and value heads [first, last) of its group, BV columns of V of each.
template <class State, int V, int BV, int CLUSTER>
struct Share {
  uint32_t n, h, first, last, rank;
  int v0;

  __device__ __forceinline__ Share(const GdnDecodeStepArgs& a, uint32_t block) {
    constexpr uint32_t SLICES = V / BV;
    const uint32_t unit = CLUSTER ? divide(block, a.by_cluster) : block;
    rank = CLUSTER ? block - unit * a.cluster : 0;
    n = divide(unit, a.key_heads), h = unit - n * a.H;
    first = rank / SLICES, last = CLUSTER ? first + 1 : static_cast<uint32_t>(a.rule.group);
    v0 = static_cast<int>(rank % SLICES) * BV;
  }
  // The convolution's channels: of q (thread < V) or k, and of v at a column of the block.
  __device__ __forceinline__ int64_t key_channel(const GdnDecodeStepArgs& a, int thread) const {
    return (thread < V ? a.H * V : -V) + static_cast<int64_t>(h) * V + thread;
  }
  __device__ __forceinline__ int64_t value_channel(const GdnDecodeStepArgs& a, uint32_t j, int column) const {
    return 2 * static_cast<int64_t>(a.H) * V + static_cast<int64_t>(h * a.rule.group + j) * V + v0 + column;
  }
  // Where the state of value head j of the group is in a slot, in elements.
  __device__ __forceinline__ int64_t at(const GdnDecodeStepArgs& a, uint32_t j) const {
    return static_cast<int64_t>(h * a.rule.group + j) * a.rule.KV + State::origin(v0);
  }
};

template <class S, class T, bool VFIRST, int CLUSTER, int SHARED>
__device__ __forceinline__ void gdn_decode_step(const GdnDecodeStepArgs& a) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  if constexpr (CLUSTER != 0) return;  // never picked here: no code
#endif
  constexpr int K = 128, V = K, BV = CLUSTER == 2 ? V / 2 : V, WARPS = 8;
  using State = HeadState<S, VFIRST, K, BV, WARPS, SHARED != 0>;
  using Share = Share<State, V, BV, CLUSTER>;
  static_assert(2 * K == State::THREADS);  // each has a channel of q or k
  static_assert(SHARED == 0 || SHARED == State::BYTES);
  __shared__ float z[2 * K];                     // k, q
  __shared__ float products[3];                  // k . k, q . q, k . q
  __shared__ float sums[State::PARTS * 2 * BV];  // read-outs
  __shared__ float w[BV];                        // u, times the norm of k
  __shared__ float squares[BV / 32], square;     // of what is normalised: of 32 columns each, of this block's
  __shared__ float decay, beta;
  constexpr int32_t kDtype = Number<T>::code;
  const FusedRecurrentArgs& rule = a.rule;
  const int tid = threadIdx.x, warp = tid / 32;
  const Share share(a, blockIdx.x);
  const uint32_t n = share.n, h = share.h;

  const auto prefetch = [&](const Share& share, IndexBits read, IndexBits lines) {
    const int64_t slot = index_value(read, rule.read.words), line = index_value(lines, a.conv_slots.words);
    if (slot < rule.min_slot || slot >= rule.slots || line < rule.min_slot || line >= a.lines.slots) return;
    if (tid % 16 == 0) {  // 16 channels are on a line, or two
      prefetch_channel(a, share.n, line, share.key_channel(a, tid));
      if (tid < BV) prefetch_channel(a, share.n, line, share.value_channel(a, share.first, tid));
      if (tid >= V && tid - V < BV) {
        const int64_t at = share.h * a.z.stride_h + share.first * V + share.v0 + tid - V;
        prefetch_line(static_cast<const T*>(a.z.data) + share.n * a.z.stride_r + at);
      }
    }
    for (uint32_t j = share.first; j < share.last; ++j)
      State::prefetch(static_cast<const S*>(rule.h0) + slot * rule.h0_stride + share.at(a, j), V);
  };
  if (blockIdx.x < a.ahead) prefetch(share, index_bits(rule.read, n), index_bits(a.conv_slots, n));
  follow_kernel_ahead();

  const bool asks = blockIdx.x + a.ahead < gridDim.x;
  const Share later(a, asks ? blockIdx.x + a.ahead : blockIdx.x);
  const IndexBits read = index_bits(rule.read, n), lines = index_bits(a.conv_slots, n);
  const IndexBits later_read = index_bits(rule.read, later.n), later_lines = index_bits(a.conv_slots, later.n);
  IndexBits write = read;
  if (rule.write.words) write = index_bits(rule.write, n);
  Channel<T> key;  // of q or k
  const int64_t key_channel = share.key_channel(a, tid);
  key.load_inputs(a, n, key_channel);

  const int64_t slot = index_value(read, rule.read.words), line = index_value(lines, a.conv_slots.words);
  const int64_t to = rule.write.words ? index_value(write, rule.write.words) : slot;
  const bool live = slot >= rule.min_slot && slot < rule.slots && line >= rule.min_slot && line < a.lines.slots;
  if (live) key.load_history(a, line, key_channel);

#pragma unroll 1
  for (uint32_t j = share.first; j < share.last; ++j) {
    const uint32_t hv = h * rule.group + j;
    const int64_t y_at = (static_cast<int64_t>(n) * rule.HV + hv) * V + share.v0 + tid;
    const auto store_y = [&](float y) { store_result(a.y, y_at, y, a.out_scale, kDtype); };
    if (!live) {  // padding; the same for all blocks of a cluster
      if (tid < BV) store_y(0.0f);
      continue;
    }
    Channel<T> value;  // first what the state will have to wait for
    uint32_t gate_bits = 0, weight_bits = 0;
    const int32_t weights = a.weight_fp32 ? kFP32 : kDtype;
    if (tid < BV) {
      const int64_t d = share.value_channel(a, j, tid);
      value.load_inputs(a, n, d), value.load_history(a, line, d);
      gate_bits = load_bits(a.z.data, n * a.z.stride_r + h * a.z.stride_h + j * V + share.v0 + tid, kDtype);
      weight_bits = load_bits(a.weight, share.v0 + tid, weights);
    }
    TokenGates gates;
    if (warp == WARPS - 1) gates.load(rule, n, 0, hv, h);
    State state;
    state.load(static_cast<const S*>(rule.h0) + slot * rule.h0_stride + share.at(a, j), V);
    if (j == share.first && asks) prefetch(later, later_read, later_lines);

    float v = 0;
    if (j == share.first) {
      z[tid] = key.result(a);
      if (!CLUSTER) key.store_history(a);
    }
    if (tid < BV) v = value.result(a), value.store_history(a);
    if (warp == WARPS - 1) {
      float g, b;
      gates.values(rule, g, b);
      if (tid % 32 == 0) decay = expf(g), beta = b;
    }
    if (CLUSTER == 1) cluster_arrive_relaxed();  // this block has read the history
    __syncthreads();

    if (warp < 3) {  // one product a warp
      const float *x = z + (warp == 1 ? K : 0), *y = z + (warp == 0 ? 0 : K);
      float sum = 0;
#pragma unroll
      for (int i = 0; i < K; i += 32) sum = fmaf(x[i + tid % 32], y[i + tid % 32], sum);
      sum = warp_sum(sum);
      if (tid % 32 == 0) products[warp] = sum;
    }
    state.unpack();
    state.template read_out<2>(z, sums);
    __syncthreads();

    float o = 0, gate = 1;
    if (tid < BV) {
      const float kk = products[0], qq = products[1], kq = products[2];
      const float r_k = rule.l2norm ? rsqrtf(kk + 1e-6f) : 1.0f;
      const float r_q = rule.l2norm ? rule.scale * rsqrtf(qq + 1e-6f) : rule.scale;
      const float s_k = r_k * State::template read<2>(sums, 0, tid), s_q = r_q * State::template read<2>(sums, 1, tid);
      const float u = beta * fmaf(-decay, s_k, v);
      w[tid] = r_k * u;
      o = fmaf(u, kq * r_k * r_q, decay * s_q);
      gate = gate_value(o, bits_value(gate_bits, kDtype), a.norm_activation);
      if (a.gate_first) o *= gate, gate = 1.0f;
      const float sum = warp_sum(o * o);
      if (tid % 32 == 0) squares[warp] = sum;
    }
    __syncthreads();

    // Halves of the columns are summed first, whoever has them.
    const auto half = [&](int i) { return squares[2 * i] + squares[2 * i + 1]; };
    if (CLUSTER == 2) {
      if (tid == 0) square = half(0);
      cluster_arrive();  // this block has read the history, and left its sum
    }
    if (to >= rule.min_slot && to < rule.slots)
      state.store_folded(decay, z, w, static_cast<S*>(rule.ht) + to * rule.ht_stride + share.at(a, j), V);
    float all = 0;
    if constexpr (CLUSTER == 2) {
      cluster_wait();
      all = of_block(&square, share.rank & ~1u) + of_block(&square, share.rank | 1u);
      cluster_arrive();  // this block has read the others' sums
    } else {
      all = half(0) + half(1);
    }
    if (tid < BV) {
      const float factor = rsqrtf(all / V + a.eps);
      store_y(normed(o, factor, bits_value(weight_bits, weights), gate, kDtype, a.hf_rounding, a.weight_fp32));
    }
    if (CLUSTER == 0) __syncthreads();  // before the next head's sums
    if (CLUSTER == 2) cluster_wait();
    if (CLUSTER == 1 && share.rank == 0) cluster_wait();
    if (CLUSTER && share.rank == 0) key.store_history(a);
  }
}

}  // namespace gdn

#define GDN_KERNEL(symbol, S, T, VFIRST, CLUSTER, BLOCKS, SHARED)                                                      \
  extern "C" __global__ void __launch_bounds__(256, BLOCKS) symbol(const __grid_constant__ gdn::GdnDecodeStepArgs a) { \
    gdn::gdn_decode_step<S, T, VFIRST, CLUSTER, SHARED>(a);                                                            \
  }
GDN_VARIANTS(GDN_KERNEL)
