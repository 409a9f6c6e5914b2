// The gated delta rule on rows of up to 16 tokens (short_rows.h), such as a draft and what it continues, on states of
// K = V = 64 or 128. A block has BV columns of V of one value head of one row. As in fused_recurrent_step.cu, it asks
// for the state of a later block, and the launch may overlap the end of the kernel ahead.
//
// Compiles for the CPU with tests/emulated_warp.h.
#include "fused_recurrent_verify.h"
#include "overlap.h"
#include "short_rows.h"

namespace gdn {

template <class S, bool VFIRST, int K, int BV, int SHARED>
__device__ __forceinline__ void fused_recurrent_verify(const FusedRecurrentVerifyArgs& args) {
  using State = HeadState<S, VFIRST, K, BV, 8, SHARED != 0, true>;
  static_assert(SHARED == 0 || SHARED == State::SHARED);
  constexpr int V = K, WARPS = State::THREADS / 32, SLICES = V / BV, PART = State::PARTS * NT * BV;
  const FusedRecurrentArgs& a = args.rule;
  __shared__ float z[2 * kMostVerified * K];  // the vectors
  __shared__ float sums[2 * PART];            // read-outs
  __shared__ float u[kMostVerified * BV];
  __shared__ Tokens<kMostVerified> shared;

  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const auto head_of = [&](uint32_t block) { return block / SLICES; };
  const uint32_t n = divide(head_of(blockIdx.x), a.heads), hv = head_of(blockIdx.x) - n * a.HV, h = divide(hv, a.ratio);
  const int v0 = static_cast<int>(blockIdx.x % SLICES) * BV, v = v0 + tid;
  const int64_t at = static_cast<int64_t>(hv) * a.KV + State::origin(v0);

  const auto prefetch = [&](uint32_t block, uint32_t n, int64_t slot) {
    if (a.h0 == nullptr || slot < 0) return;
    const uint32_t hv = head_of(block) - n * a.HV;
    const int v0 = static_cast<int>(block % SLICES) * BV;
    if (warp == WARPS - 2)
      State::prefetch_whole(
          static_cast<const S*>(a.h0) + slot * a.h0_stride + static_cast<int64_t>(hv) * a.KV + State::origin(v0), V);
    if (!a.cu_seqlens.words && warp < a.T) prefetch_token<BV>(a, n, warp, hv, divide(hv, a.ratio), v0);
  };
  State state;
  RowStart start(a, n, n < static_cast<uint32_t>(a.N));
  if (blockIdx.x < args.ahead) start.follow(a), prefetch(blockIdx.x, n, start.value(a));
  follow_kernel_ahead();

  const RowTokens row(a, n);
  const int tokens = row.tokens;
  const uint32_t later = blockIdx.x + args.ahead, later_n = divide(head_of(later), a.heads);
  start = RowStart(a, n, !row.outside);
  RowStart next(a, later_n, later < gridDim.x && later_n < static_cast<uint32_t>(a.N));
  start.follow(a), next.follow(a);
  const int64_t slot = start.value(a);
  const int64_t o = row.first(a.T) * a.o_stride + hv * V + v0;
  if (slot < 0 || tokens > a.spec.most_tokens)
    return row.each_dead(
        a.T, BV, [&](int64_t t, int column) { store_rounded(a.o, o + t * a.o_stride + column, 0.0f, a.dtype); });
  if (tokens == 0) return;

  // Loads of the first tokens, then of the state, which stay on their way.
  Vector<K> vector;
  uint32_t v_bits[NT];
  const auto load_vector = [&](int t0) {
    const int t = t0 + warp % NT;
    if (t < tokens) vector.load(warp < NT ? a.k : a.q, row.row, t, h, K, a.dtype);
  };
  const auto load_v = [&](int t0) {
    const int64_t from = row.row * a.v.stride_r + hv * a.v.stride_h + v;
#pragma unroll
    for (int i = 0; i < NT; ++i)
      if (tid < BV && t0 + i < tokens) v_bits[i] = load_bits(a.v.data, from + (t0 + i) * a.v.stride_t, a.dtype);
  };
  load_vector(0);
  load_v(0);
  TokenGates gates;
  if (warp == WARPS - 1 && lane < tokens) gates.load(a, row.row, lane, hv, h);
  const bool has_state = a.h0 != nullptr && (!a.has_state || load_byte(a.has_state + n * a.has_state_stride));
  const auto load_state = [&] {
    if (has_state)
      state.load(static_cast<const S*>(a.h0) + slot * a.h0_stride + at, V);
    else
      state.clear();
  };
  load_state();
  prefetch(later, later_n, next.value(a));

  if (warp == WARPS - 1) {
    shared.load_row(a, n, slot, tokens);
    shared.set_gates(a, gates, tokens);
  }
#pragma unroll 1
  for (int t0 = 0; t0 < tokens; t0 += NT) {
    float y[Vector<K>::N] = {};
    if (t0 + warp % NT < tokens) vector.values(y, a.l2norm, warp < NT ? 1.0f : a.scale, a.dtype);
    load_vector(t0 + NT);
#pragma unroll
    for (int i = 0; i < Vector<K>::N; ++i) z[(2 * t0 + warp) * K + lane + 32 * i] = y[i];
  }
  __syncthreads();

  shared.template relate<K, WARPS>(z, tokens);
  state.unpack();
#pragma unroll 1
  for (int t0 = 0; t0 < tokens; t0 += NT) {
    if (t0 > 0) {
      load_v(t0);
      __syncthreads();  // the sums have been read
    }
#pragma unroll 1
    for (int c = 0; c < 2; ++c) state.template read_out<NT>(z + (2 * t0 + c * NT) * K, sums + c * PART);
    __syncthreads();
    if (tid >= BV) continue;
    float read_k[NT], read_q[NT];
#pragma unroll
    for (int i = 0; i < NT; ++i) {
      read_k[i] = State::template read<NT>(sums, i, tid);
      read_q[i] = State::template read<NT>(sums + PART, i, tid);
    }
    shared.template solve<BV>(
        t0, tokens, read_k, read_q, u, [&](int i) { return bits_value(v_bits[i], a.dtype); },
        [&](int t, float y) { store_rounded(a.o, o + t * a.o_stride + tid, y, a.dtype); });
  }
  __syncthreads();

  shared.template store_states<S, K, BV>(a, slot, tokens, at, z, u, state, [&] {
    if constexpr (SHARED == 0) load_state(), state.unpack();
    state.gather();
  });
}

}  // namespace gdn

#define GDN_KERNEL(symbol, S, VFIRST, BK, BV, BLOCKS, SHARED)           \
  extern "C" __global__ void __launch_bounds__(256, BLOCKS)             \
      symbol(const __grid_constant__ gdn::FusedRecurrentVerifyArgs a) { \
    gdn::fused_recurrent_verify<S, VFIRST, BK, BV, SHARED>(a);          \
  }
GDN_VARIANTS(GDN_KERNEL)
