// One token of the gated delta rule for every row of a dense batch, on states of K = V = 64 or 128:
//   h <- exp(g) h;  u = beta (v - h^T k);  h <- h + k u^T;  o = scale h^T q
// as one pass over the state: both read-outs are taken from the old one,
//   s_k = h^T k,  s_q = h^T q;  u = beta (v - e^g s_k);  o = e^g s_q + u (k . q)
//
// A block has BV columns of V of one value head of one row, in registers (head_state.h), and asks for the state of a
// block that will run when this one is done: what waits for memory is L2, not the block, whose life is short. Norms are
// factors of the read-outs, so q and k are used as they come. The launch may overlap the end of the kernel ahead.
//
// Compiles for the CPU with tests/emulated_warp.h.
#include "fused_recurrent_step.h"
#include "head_state.h"
#include "overlap.h"
#include "tokens.h"

namespace gdn {

// BV columns from v0 on of value head hv of row n.
template <class State, int K, int BV>
struct Tile {
  uint32_t n, hv;
  int v0;
  int64_t at;  // in a slot, elements

  __device__ __forceinline__ Tile(const FusedRecurrentArgs& a, uint32_t block) {
    constexpr uint32_t SLICES = K / BV;
    const uint32_t head = block / SLICES;
    n = divide(head, a.heads), hv = head - n * a.HV, v0 = static_cast<int>(block % SLICES) * BV;
    at = static_cast<int64_t>(hv) * a.KV + State::origin(v0);
  }
};

template <class S, bool VFIRST, int K, int BV, int WARPS>
__device__ __forceinline__ void fused_recurrent_step(const FusedRecurrentStepArgs& args) {
  using State = HeadState<S, VFIRST, K, BV, WARPS>;
  using Tile = Tile<State, K, BV>;
  constexpr int V = K;
  const FusedRecurrentArgs& a = args.rule;
  __shared__ float z[2 * K];                     // k, q
  __shared__ float products[K / 32][3];          // k . k, q . q, k . q of 32 elements each
  __shared__ float sums[State::PARTS * 2 * BV];  // read-outs
  __shared__ float w[BV];                        // u, times the norm of k
  __shared__ float decay, beta;

  const int tid = threadIdx.x;
  const Tile tile(a, blockIdx.x);
  const uint32_t n = tile.n, hv = tile.hv, h = divide(hv, a.ratio);

  // The first blocks ask for their state while the kernel ahead still runs, the others' was asked for by earlier ones.
  const auto prefetch = [&](const Tile& tile, IndexBits read) {
    const int64_t slot = a.read.words ? index_value(read, a.read.words) : tile.n;
    if (a.h0 != nullptr && (!a.read.words || (slot >= a.min_slot && slot < a.slots)))
      State::prefetch(static_cast<const S*>(a.h0) + slot * a.h0_stride + tile.at, V, tid);
    if (tid / 32 == WARPS - 2) prefetch_token<BV>(a, tile.n, 0, tile.hv, divide(tile.hv, a.ratio), tile.v0);
  };
  if (blockIdx.x < args.ahead) prefetch(tile, a.read.words ? index_bits(a.read, n) : IndexBits{});
  follow_kernel_ahead();

  // What says where the states are comes first, then the token, then the state; nothing is looked at before it is
  // needed.
  const bool asks = blockIdx.x + args.ahead < gridDim.x;
  const Tile later(a, asks ? blockIdx.x + args.ahead : blockIdx.x);
  IndexBits read{}, write{}, later_read{};
  uint32_t has_state = a.h0 != nullptr;
  if (a.read.words) read = index_bits(a.read, n), later_read = index_bits(a.read, later.n);
  if (a.write.words) write = index_bits(a.write, n);
  if (a.has_state) has_state = load_byte(a.has_state + n * a.has_state_stride);
  uint32_t q_bits = 0, k_bits = 0, v_bits = 0;
  TokenGates gates{};
  if (tid < K) {
    q_bits = load_bits(a.q.data, n * a.q.stride_r + h * a.q.stride_h + tid, a.dtype);
    k_bits = load_bits(a.k.data, n * a.k.stride_r + h * a.k.stride_h + tid, a.dtype);
    if (tid < BV) v_bits = load_bits(a.v.data, n * a.v.stride_r + hv * a.v.stride_h + tile.v0 + tid, a.dtype);
  }
  const bool has_gates = tid / 32 == WARPS - 1;
  if (has_gates) gates.load(a, n, 0, hv, h);

  const int64_t slot = a.read.words ? index_value(read, a.read.words) : n;
  const int64_t to = a.write.words ? index_value(write, a.write.words) : slot;
  const int64_t o = static_cast<int64_t>(n) * a.o_stride + hv * V + tile.v0 + tid;
  if (a.read.words && (slot < a.min_slot || slot >= a.slots)) {  // padding
    if (tid < BV) store_rounded(a.o, o, 0.0f, a.dtype);
    return;
  }
  State state;
  if (a.h0 != nullptr && has_state)
    state.load(static_cast<const S*>(a.h0) + slot * a.h0_stride + tile.at, V);
  else
    state.clear();

  if (asks) prefetch(later, later_read);

  if (tid < K) {
    const float q = bits_value(q_bits, a.dtype), k = bits_value(k_bits, a.dtype);
    z[tid] = k, z[K + tid] = q;
    const float x[3] = {k * k, q * q, k * q};
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const float sum = warp_sum(x[i]);
      if (tid % 32 == 0) products[tid / 32][i] = sum;
    }
  }
  if (has_gates) {
    float g, b;
    gates.values(a, g, b);
    if (tid % 32 == 0) decay = expf(g), beta = b;
  }
  __syncthreads();

  state.unpack();
  state.template read_out<2>(z, sums);
  __syncthreads();

  if (tid < BV) {
    float kk = 0, qq = 0, kq = 0;
#pragma unroll
    for (int i = 0; i < K / 32; ++i) kk += products[i][0], qq += products[i][1], kq += products[i][2];
    const float r_k = a.l2norm ? rsqrtf(kk + 1e-6f) : 1.0f, r_q = a.l2norm ? a.scale * rsqrtf(qq + 1e-6f) : a.scale;
    const float s_k = r_k * State::template read<2>(sums, 0, tid), s_q = r_q * State::template read<2>(sums, 1, tid);
    const float u = beta * fmaf(-decay, s_k, bits_value(v_bits, a.dtype));
    store_rounded(a.o, o, fmaf(u, kq * r_k * r_q, decay * s_q), a.dtype);
    w[tid] = r_k * u;
  }
  __syncthreads();

  if (a.ht == nullptr || (a.read.words && (to < a.min_slot || to >= a.slots))) return;
  if (sizeof(S) == 4 || a.ht_fp32)
    state.store_folded(decay, z, w, static_cast<float*>(a.ht) + to * a.ht_stride + tile.at, V);
  else
    state.store_folded(decay, z, w, static_cast<S*>(a.ht) + to * a.ht_stride + tile.at, V);
}

}  // namespace gdn

#define GDN_KERNEL(symbol, S, VFIRST, BK, BV, WARPS, BLOCKS)          \
  extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)    \
      symbol(const __grid_constant__ gdn::FusedRecurrentStepArgs a) { \
    gdn::fused_recurrent_step<S, VFIRST, BK, BV, WARPS>(a);           \
  }
GDN_VARIANTS(GDN_KERNEL)
