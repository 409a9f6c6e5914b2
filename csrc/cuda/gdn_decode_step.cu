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
#include "channels.h"
#include "gated_norm.h"
#include "head_state.h"
#include "overlap.h"
#include "tokens.h"

namespace gdn {

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
  // The convolution's channels from a thread's on, of value head j: k for the first V / 2 threads, then q, then v from
  // the block's columns on; and where they are in its input.
  __device__ __forceinline__ uint32_t channel(const GdnDecodeStepArgs& a, uint32_t j, int thread) const {
    return thread < V / 2 ? (a.H + h) * V + 2 * thread
           : thread < V   ? h * V + 2 * thread - V
                          : (2 * a.H + h * a.rule.group + j) * V + v0 + 2 * (thread - V);
  }
  template <class T>
  __device__ __forceinline__ const T* input(const GdnDecodeStepArgs& a, uint32_t j, int thread) const {
    if (thread < V / 2) return of_head<T>(a, a.rule.k) + 2 * thread;
    if (thread < V) return of_head<T>(a, a.rule.q) + 2 * thread - V;
    return of_head<T>(a, a.rule.v) + j * V + v0 + 2 * (thread - V);
  }
  // What gates a column of the block.
  template <class T>
  __device__ __forceinline__ const T* gate(const GdnDecodeStepArgs& a, uint32_t j, int column) const {
    return of_head<T>(a, a.z) + j * V + v0 + column;
  }
  // Where the state of value head j of the group is in a slot, in elements.
  __device__ __forceinline__ int64_t at(const GdnDecodeStepArgs& a, uint32_t j) const {
    return static_cast<int64_t>(h * a.rule.group + j) * a.rule.KV + State::origin(v0);
  }

 private:
  template <class T>
  __device__ __forceinline__ const T* of_head(const GdnDecodeStepArgs& a, const RowsArg& x) const {
    return static_cast<const T*>(x.data) + n * a.z.stride_r + h * x.stride_h;
  }
};

template <class S, class T, bool VFIRST, int CLUSTER, int SHARED>
__device__ __forceinline__ void gdn_decode_step(const GdnDecodeStepArgs& a) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  if constexpr (CLUSTER != 0) return;  // never picked here: no code
#endif
  constexpr int K = 128, V = K, BV = CLUSTER == 2 ? V / 2 : V, WARPS = 8;
  using State = HeadState<S, VFIRST, K, BV, WARPS, SHARED != 0, true>;
  using Share = Share<State, V, BV, CLUSTER>;
  using Channels = Channels<T>;
  static_assert(SHARED == 0 || SHARED == State::SHARED);
  __shared__ float z[2 * K], v[BV];                              // k and q, v
  __shared__ uint32_t words[Channels::kWords * State::THREADS];  // of histories
  __shared__ float products[3];                                  // k . k, q . q, k . q
  __shared__ float sums[State::PARTS * 2 * BV];                  // read-outs
  __shared__ float w[BV];                                        // u, times the norm of k
  __shared__ float squares[BV / 32], square;  // of what is normalised: of 32 columns each, of this block's
  __shared__ float decay, beta;
  constexpr int32_t kDtype = Number<T>::code;
  const FusedRecurrentArgs& rule = a.rule;
  const int tid = threadIdx.x, warp = tid / 32;
  const Share share(a, blockIdx.x);
  const uint32_t n = share.n, h = share.h;
  // What warps do before the rule: two channels a thread of k and q, and of v; gates; asking for a later block's
  // inputs.
  const bool has_keys = tid < V, has_values = !has_keys && tid < V + BV / 2;
  const bool has_gates = warp == WARPS - 2, asks = warp == WARPS - 1;
  static_assert(V + V / 2 == 32 * (WARPS - 2));

  const auto inside = [&](int64_t slot, int64_t line) {
    return slot >= rule.min_slot && slot < rule.slots && line >= rule.min_slot && line < a.lines.slots;
  };
  const auto prefetch = [&](const Share& share, IndexBits read, IndexBits lines) {
    const int64_t slot = index_value(read, rule.read.words), line = index_value(lines, a.conv_slots.words);
    if (!inside(slot, line)) return;
    const S* states = static_cast<const S*>(rule.h0) + slot * rule.h0_stride;
    for (uint32_t j = share.first; j < share.last; ++j) State::prefetch_whole(states + share.at(a, j), V);
    const int thread = tid % 32 * 8;  // 16 channels are on a line, or two
    if (thread < V + BV / 2) {
      prefetch_line(share.template input<T>(a, share.first, thread));
      prefetch_line(Channels::line_of(a.lines, line, share.channel(a, share.first, thread)));
    } else if (thread < V + BV) {
      prefetch_line(share.template gate<T>(a, share.first, 2 * (thread - V) - BV));
    }
  };
  State state;
  if (asks && blockIdx.x < a.ahead) prefetch(share, index_bits(rule.read, n), index_bits(a.conv_slots, n));
  follow_kernel_ahead();

  const IndexBits read = index_bits(rule.read, n), lines = index_bits(a.conv_slots, n);
  IndexBits write = read;
  if (rule.write.words) write = index_bits(rule.write, n);
  __syncwarp();  // loads behind this stay behind the ones before

#pragma unroll 1
  for (uint32_t j = share.first; j < share.last; ++j) {
    // What no slot is needed for comes first, while slots are on their way; then the little that conv slots say, then
    // the state, behind which other loads would wait for long. Nothing is looked at before all are on their way.
    const uint32_t hv = h * rule.group + j;
    const bool converts = has_values || (has_keys && j == share.first);
    const uint32_t channel = share.channel(a, j, tid);
    Channels channels;
    if (converts) channels.load_inputs(a, share.template input<T>(a, j, tid), channel);
    uint32_t gate_bits = 0, weight_bits = 0;
    const int32_t weights = a.weight_fp32 ? kFP32 : kDtype;
    if (tid < BV) {
      gate_bits = load_bits(share.template gate<T>(a, j, tid), 0, kDtype);
      weight_bits = load_bits(a.weight, share.v0 + tid, weights);
    }
    TokenGates gates;
    if (has_gates) gates.load_raw<kDtype>(rule, n, hv, h);
    __syncwarp();
    const int64_t slot = index_value(read, rule.read.words), line = index_value(lines, a.conv_slots.words);
    const int64_t to = rule.write.words ? index_value(write, rule.write.words) : slot;
    const int64_t y_at = (static_cast<int64_t>(n) * rule.HV + hv) * V + share.v0 + tid;
    const auto store_y = [&](float y) { store_result(a.y, y_at, y, a.out_scale, kDtype); };
    if (!inside(slot, line)) {  // padding; the same for all blocks of a cluster
      if (tid < BV) store_y(0.0f);
      continue;
    }
    if (converts) channels.load_history(a, line, channel, words);
    state.load(static_cast<const S*>(rule.h0) + slot * rule.h0_stride + share.at(a, j), V);
    __syncwarp();

    if (asks && j == share.first && blockIdx.x + a.ahead < gridDim.x) {
      const Share later(a, blockIdx.x + a.ahead);
      prefetch(later, index_bits(rule.read, later.n), index_bits(a.conv_slots, later.n));
    }
    if (converts) {
      float y[2];
      channels.take_history(a, words);
      channels.results(a, y);
      float* into = has_keys ? z + 2 * tid : v + 2 * (tid - V);
      into[0] = y[0], into[1] = y[1];
      if (has_values || !CLUSTER) channels.store_history(a);
    }
    if (has_gates) {
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
      const float u = beta * fmaf(-decay, s_k, v[tid]);
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
    if (CLUSTER && share.rank == 0 && has_keys) channels.store_history(a);
  }
}

}  // namespace gdn

#define GDN_KERNEL(symbol, S, T, VFIRST, CLUSTER, BLOCKS, SHARED)                                                      \
  extern "C" __global__ void __launch_bounds__(256, BLOCKS) symbol(const __grid_constant__ gdn::GdnDecodeStepArgs a) { \
    gdn::gdn_decode_step<S, T, VFIRST, CLUSTER, SHARED>(a);                                                            \
  }
GDN_VARIANTS(GDN_KERNEL)
