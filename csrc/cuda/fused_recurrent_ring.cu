// The gated delta rule on frozen states: h0 in the pool, and a ring of the m tokens since, each k_j, u_j and g_j, so
// that
//   h = e^(g_0 + .. + g_(m-1)) h0 + sum_j e^(g_(j+1) + .. + g_(m-1)) k_j u_j^T
// A step never forms h. Up to NT tokens at a time, z being their k and q:
//   x = h^T z = e^(..) h0^T z + sum_j (e^(..) k_j . z) u_j      one pass over h0
//   u_t = beta_t (v_t - e^(..) x_k - sum_(s<t) e^(..) (k_s . k_t) u_s);  o_t = e^(..) x_q + sum_(s<=t) e^(..) (k_s .
//   q_t) u_s
// and the tokens become entries. Sums of g are of the tokens between two, never differences of sums, and so as exact as
// small gates are. Rows with more than NT tokens fold entries and tokens into the registers as they go.
//
// A block has BV columns of V of one value head of one row; with one token a row all of them, in SHARED bytes of shared
// memory (head_state.h), so that three blocks' states are on their way at once. A row without room for its tokens is
// due: its entries are folded into h0, which is stored, and its tokens become entries from 0 on. These replace keys
// that all heads of a group read, so the first block of the group's cluster does so when all have; without clusters one
// block works through all of a due group, one head after another, and replaces the keys last.
//
// Compiles for the CPU with tests/emulated_warp.h.
#include "fused_recurrent_ring.h"
#include "head_state.h"
#include "masked_state.h"
#include "overlap.h"
#include "packs.h"
#include "tokens.h"

namespace gdn {

// ---- entries ---------------------------------------------------------------------------------------------------

// The sum of x over the lanes after this one, and over all.
__device__ __forceinline__ float sum_after(float x, float& all) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int far = 1; far < 32; far *= 2) {
    const float other = __shfl_down_sync(kAll, x, far);
    if (lane + far < 32) x += other;
  }
  all = __shfl_sync(kAll, x, 0);
  const float after = __shfl_down_sync(kAll, x, 1);
  return lane < 31 ? after : 0.0f;
}

// By one warp: what is left of each of m entries once all have passed, and, last, of the frozen state.
__device__ __forceinline__ void store_weights(float* weights, const float* g, int step, int m) {
  const int lane = threadIdx.x % 32;
  float all, behind = 0;
  if (m > 32) weights[lane + 32] = expf(sum_after(lane + 32 < m ? g[(lane + 32) * step] : 0.0f, behind));
  weights[lane] = expf(sum_after(lane < m ? g[lane * step] : 0.0f, all) + behind);
  if (lane == 0) weights[kMostEntries] = expf(all + behind);
}

// ---- the kernel ------------------------------------------------------------------------------------------------

template <bool MASKED, class S, bool VFIRST, int BK, int BV, bool STAGED>
struct StateOf {
  using Type = HeadState<S, VFIRST, BK, BV, 8, STAGED>;
  static __device__ __forceinline__ Type make(int, int, int32_t) { return Type(); }
};
template <class S, bool VFIRST, int BK, int BV>
struct StateOf<true, S, VFIRST, BK, BV, false> {
  using Type = MaskedState<VFIRST>;
  static __device__ __forceinline__ Type make(int K, int columns, int32_t dtype) { return Type(K, columns, dtype); }
};

template <class S, bool VFIRST, int BK, int NT, int BV, int SHARED>
__device__ __forceinline__ void fused_recurrent_ring(const FusedRecurrentRingArgs& a) {
  constexpr bool MASKED = BK == 256, STAGED = SHARED != 0;
  using Made = StateOf<MASKED, S, VFIRST, BK, BV, STAGED>;
  using State = typename Made::Type;
  static_assert(STAGED == (NT == 1));
  constexpr int THREADS = State::THREADS, WARPS = THREADS / 32, N = 2 * NT;
  constexpr int AHEAD = 16, BATCH = STAGED ? 8 : 16;  // entries that are loaded ahead of their use, and folded at once
  constexpr int READ = State::PARTS * N * BV, FOLD = BATCH * (BK + BV);
  constexpr int C = BK / 32;                 // elements of a key that a lane has, side by side
  constexpr int KEYS = AHEAD / WARPS;        // loads of a warp
  constexpr int PARTS = THREADS / BV;        // sums over u, side by side
  constexpr int US = AHEAD / PARTS;          // loads of a thread
  constexpr int KEPT = STAGED;               // parts of these sums that stay in registers: those are free
  __align__(16) __shared__ float z[N * BK];  // the tokens' k, then their q
  // Read-outs of the state; or entries on their way into it.
  __align__(16) __shared__ float buffer[READ > FOLD ? READ : FOLD];
  __shared__ float products[(kMostEntries + NT) * N];  // of the entries' k, decayed, and of the tokens' k with z
  __shared__ float weights[kMostEntries + 1];          // what is left of the entries, and of the frozen state
  __shared__ float gates[2][NT];                       // g, beta
  __shared__ float aside[(PARTS - KEPT) * N * BV];     // sums over entries, but for the parts in registers
  __shared__ float own[NT * BV];                       // u of the tokens, decayed

  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int K = MASKED ? a.K : BK, V = MASKED ? a.V : BK;
  const int slices = a.n_slices, group_units = a.group * slices;
  const uint32_t n = divide(blockIdx.x, a.units);
  int unit = static_cast<int>(blockIdx.x - n * static_cast<uint32_t>(a.HV * slices));
  const uint32_t h = divide(divide(unit, a.slices), a.ratio);
  const int first_unit = static_cast<int>(h) * group_units;

  follow_kernel_ahead();

  // The row: its tokens, slot and entries.
  const bool commits = a.entries.words != 0;
  RowTokens span = NT == 1 ? RowTokens(n, 1) : RowTokens(a, n);
  if (commits) span.tokens = 0;
  const bool outside = span.outside;
  const uint32_t row = span.row;
  const int tokens = span.tokens;
  const int64_t slot = outside ? -1 : load_index(a.read, n);
  int64_t entries = -1;
  if (!outside && slot >= a.min_slot && slot < a.slots)
    entries = commits ? load_index(a.entries, n) : load_index(a.lengths, slot);
  if (entries < 0 || entries > a.R || (tokens > a.R && !outside)) {  // padding: zeros, nothing touched
    const uint32_t hv = divide(unit, a.slices);
    const int v0 = (unit - static_cast<int>(hv) * slices) * BV;
    return span.each_dead(a.T, BV, [&](int64_t t, int v) {
      v += v0;
      if (v < V) store_rounded(a.o, (span.first(a.T) + t) * a.o_stride + hv * V + v, 0.0f, a.dtype);
    });
  }
  const int m = static_cast<int>(entries);
  const bool due = commits ? m > 0 : m + tokens > a.R;
  if (tokens == 0 && !due) return;
  const bool group_at_once = due && !commits && !a.clusters;
  if (group_at_once && unit != first_unit) return;

  const int to = due ? 0 : m;  // where the tokens' entries go
  float* const ring_k = a.ring_k.data + slot * a.ring_k.stride + h * K;
  const int step_k = a.H * K, step_u = a.HV * V;
  const int end_unit = group_at_once ? first_unit + group_units : unit + 1;
  const bool has_keys = unit == first_unit;
#pragma unroll 1
  for (; unit < end_unit; ++unit) {
    const uint32_t hv = divide(unit, a.slices);
    const int v0 = (unit - static_cast<int>(hv) * slices) * BV, v = v0 + tid;
    float* const ring_u = a.ring_u.data + slot * a.ring_u.stride + hv * V + v0;
    float* const ring_g = a.ring_g.data + slot * a.ring_g.stride + hv;
    const int64_t at = slot * a.pool_stride + static_cast<int64_t>(hv) * K * V + (VFIRST ? v0 * K : v0);
    S* const tile =
        reinterpret_cast<S*>(static_cast<char*>(a.pool) + at * (MASKED ? size_of(a.state_dtype) : sizeof(S)));

    // Loads of the first tokens, of the first entries and of the state, which stay on their way.
    Vector<BK> token;
    uint32_t v_bits[NT];
    const auto load_tokens = [&](int t0) {
      const int t = t0 + warp % NT;
      if (warp < N && t < tokens) token.load(warp < NT ? a.k : a.q, row, t, h, K, a.dtype);
#pragma unroll
      for (int i = 0; i < NT; ++i)
        if (tid < BV && v < V && t0 + i < tokens)
          v_bits[i] =
              load_bits(a.v.data, row * a.v.stride_r + (t0 + i) * a.v.stride_t + hv * a.v.stride_h + v, a.dtype);
    };
    load_tokens(0);
    const auto load_key = [&](int j, float (&x)[C]) {
      const float* key = ring_k + j * step_k + lane * C;
      if constexpr (!MASKED) return load_pack<float, C>(key, x);
#pragma unroll
      for (int i = 0; i < C; ++i) x[i] = lane * C + i < K ? key[i] : 0.0f;
    };
    const int part = tid / BV, column = tid % BV;  // of the sums over u
    float keys[KEYS][C] = {}, us[US] = {};
#pragma unroll
    for (int i = 0; i < KEYS; ++i)
      if (warp + i * WARPS < m) load_key(warp + i * WARPS, keys[i]);
#pragma unroll
    for (int i = 0; i < US; ++i)
      if (part + i * PARTS < m && v0 + column < V) us[i] = ring_u[(part + i * PARTS) * step_u + column];
    State state = Made::make(K, V - v0, a.state_dtype);
    state.load(tile, V);
    TokenGates token_gates;
    if (warp == 3 && lane < min(NT, tokens)) token_gates.load(a, row, lane, hv, h);
    if (warp == 2) store_weights(weights, ring_g, a.HV, m);
    if constexpr (!STAGED) state.unpack();

    int ahead = m;  // entries before the tokens that the state lacks
#pragma unroll 1
    for (int t0 = 0; t0 == 0 || t0 < tokens; t0 += NT) {  // without tokens, once
      const int nt = min(NT, tokens - t0);
      if (t0 > 0) {
        load_tokens(t0);
        if (warp == 3 && lane < nt) token_gates.load(a, row, t0 + lane, hv, h);
      }
      if (warp < N) {
        float y[Vector<BK>::N] = {};
        if (warp % NT < nt) token.values(y, a.l2norm, warp < NT ? 1.0f : a.scale, a.dtype);
#pragma unroll
        for (int i = 0; i < Vector<BK>::N; ++i) {
          z[warp * BK + lane + 32 * i] = y[i];
          if (warp < nt && has_keys && !due && lane + 32 * i < K)
            ring_k[(m + t0 + warp) * step_k + lane + 32 * i] = y[i];
        }
      }
      if (warp == 3 && lane < nt) token_gates.values(a, gates[0][lane], gates[1][lane]);
      __syncthreads();
      // The head's last slice is the last to have read its old ones.
      if (v0 + BV >= V && tid < nt) ring_g[(to + t0 + tid) * a.HV] = gates[0][tid];

      // Products of entries, a warp each, and of the tokens.
      const auto multiply = [&](int j, const float (&x)[C], float left) {
        float y[N];
#pragma unroll
        for (int c = 0; c < N; ++c) {
          y[c] = 0;
#pragma unroll
          for (int i = 0; i < C; ++i) y[c] = fmaf(x[i], z[c * BK + lane * C + i], y[c]);
        }
        spread_sums<32, 1, N>(y, lane);
        if (lane % (32 / N) == 0) products[j * N + lane / (32 / N)] = left * y[0];
      };
#pragma unroll
      for (int i = 0; i < KEYS; ++i)
        if (const int j = warp + i * WARPS; j < ahead) multiply(j, keys[i], weights[j]);
#pragma unroll 1
      for (int j = warp + AHEAD; j < ahead; j += WARPS) {
        float x[C];
        load_key(j, x);
        multiply(j, x, weights[j]);
      }
      if (warp < nt) {
        float x[C];
#pragma unroll
        for (int i = 0; i < C; ++i) x[i] = z[warp * BK + lane * C + i];
        multiply(ahead + warp, x, 1);
      }
      __syncthreads();

      float x[N] = {};  // the entries' part of h^T z; then all of it
      const auto add = [&](int j, float u) {
#pragma unroll
        for (int c = 0; c < N; ++c) x[c] = fmaf(products[j * N + c], u, x[c]);
      };
#pragma unroll
      for (int i = 0; i < US; ++i)
        if (const int j = part + i * PARTS; j < ahead) add(j, us[i]);
#pragma unroll 4
      for (int j = part + AHEAD; j < ahead; j += PARTS) add(j, v0 + column < V ? ring_u[j * step_u + column] : 0.0f);
#pragma unroll
      for (int c = 0; c < N; ++c)
        if (part >= KEPT) aside[((part - KEPT) * N + c) * BV + column] = x[c];
      if constexpr (STAGED) state.unpack();
      state.template read_out<N>(z, buffer);
      __syncthreads();

      const float frozen = t0 == 0 ? weights[kMostEntries] : 1.0f;
      float u[NT], decayed[NT], passed = 1;  // u; what is left of it, and of h, after the tokens so far
      if (tid < BV && v < V) {
#pragma unroll
        for (int c = 0; c < N; ++c) {
#pragma unroll
          for (int p = KEPT; p < PARTS; ++p) x[c] = (p == 0 ? 0 : x[c]) + aside[((p - KEPT) * N + c) * BV + tid];
          x[c] = fmaf(frozen, State::template read<N>(buffer, c, tid), x[c]);
        }
#pragma unroll
        for (int t = 0; t < NT; ++t) {
          if (t >= nt) break;
          const float decay = expf(gates[0][t]);
          passed *= decay;
          float s_k = passed * x[t], s_q = passed * x[NT + t];
#pragma unroll
          for (int s = 0; s < t; ++s) {
            decayed[s] *= decay;
            s_k = fmaf(products[(ahead + s) * N + t], decayed[s], s_k);
            s_q = fmaf(products[(ahead + s) * N + NT + t], decayed[s], s_q);
          }
          u[t] = decayed[t] = gates[1][t] * (bits_value(v_bits[t], a.dtype) - s_k);
          s_q = fmaf(products[(ahead + t) * N + NT + t], u[t], s_q);
          store_rounded(a.o, (span.first(a.T) + t0 + t) * a.o_stride + hv * V + v, s_q, a.dtype);
        }
      }

      const bool more = t0 + NT < tokens;
      if (due || more) {  // the entries into the state
        float *const b_k = buffer, *const b_u = buffer + BATCH * BK;
        const auto bring = [&](int j0) {  // a batch of them
          const int count = min(BATCH, ahead - j0);
          __syncthreads();
          const float *k = ring_k + j0 * step_k, *u = ring_u + j0 * step_u;
          if constexpr (MASKED) {
#pragma unroll 1
            for (int i = tid; i < count * BK; i += THREADS) b_k[i] = i % BK < K ? k[i / BK * step_k + i % BK] : 0.0f;
#pragma unroll 1
            for (int i = tid; i < count * BV; i += THREADS)
              b_u[i] = v0 + i % BV < V ? u[i / BV * step_u + i % BV] : 0.0f;
          } else {
#pragma unroll 1
            for (int i = tid * 4; i < count * BK; i += THREADS * 4)
              copy_16_bytes<false>(b_k + i, k + i / BK * step_k + i % BK);
#pragma unroll 1
            for (int i = tid * 4; i < count * BV; i += THREADS * 4)
              copy_16_bytes<false>(b_u + i, u + i / BV * step_u + i % BV);
            wait_for_copies();
          }
          __syncthreads();
          return count;
        };
        if constexpr (STAGED) {
          state.store_folded(frozen, ahead, b_k, b_u, weights, tile, V, bring);
        } else {
#pragma unroll 1
          for (int j0 = 0; j0 < ahead; j0 += BATCH) {
            const int count = bring(j0);
            state.fold(j0 == 0 ? frozen : 1.0f, b_k, b_u, count, weights + j0);
          }
          if (due && t0 == 0) state.store(tile, V);
        }
        __syncthreads();  // u of all columns has been read
      }
      if (tid < BV && v < V) {
#pragma unroll
        for (int t = 0; t < NT; ++t)
          if (t < nt) ring_u[(to + t0 + t) * step_u + tid] = u[t];
      }
      __syncthreads();
      if constexpr (NT == 1) break;
      if (more) {  // and the tokens
        float all = 1;
#pragma unroll
        for (int t = 0; t < NT; ++t) {
          all *= expf(gates[0][t]);
          if (tid < BV) own[t * BV + tid] = v < V ? decayed[t] : 0.0f;
        }
        __syncthreads();
        state.fold(all, z, own, NT);
        ahead = 0;
        __syncthreads();
      }
    }
  }

  if (due && a.clusters) cluster_arrive();
  if (!due || !has_keys) return;
  if (a.clusters) cluster_wait();
  if constexpr (NT == 1) {
    if (tid < K && tokens > 0) ring_k[tid] = z[tid];
  } else {
#pragma unroll 1
    for (int t = warp; t < tokens; t += WARPS) {
      Vector<BK> x;
      float k[Vector<BK>::N];
      x.load(a.k, row, t, h, K, a.dtype);
      x.values(k, a.l2norm, 1.0f, a.dtype);
#pragma unroll
      for (int i = 0; i < Vector<BK>::N; ++i)
        if (lane + 32 * i < K) ring_k[t * step_k + lane + 32 * i] = k[i];
    }
  }
}

}  // namespace gdn

#define GDN_KERNEL(symbol, S, VFIRST, BK, NT, BV, BLOCKS, SHARED)     \
  extern "C" __global__ void __launch_bounds__(256, BLOCKS)           \
      symbol(const __grid_constant__ gdn::FusedRecurrentRingArgs a) { \
    gdn::fused_recurrent_ring<S, VFIRST, BK, NT, BV, SHARED>(a);      \
  }
GDN_VARIANTS(GDN_KERNEL)
