// The gated delta rule token by token, on states in registers:
//   h <- exp(g_t) h;  u = beta_t (v_t - h^T k_t);  h <- h + k_t u^T;  o_t = scale h^T q_t
// Both read-outs come from the old state, so that one pass over it and one exchange between lanes serve a token:
//   s_k = h^T k,  s_q = h^T q  (before the decay);  u = beta (v - e^g s_k);  o = e^g s_q + u (k . q)
//
// One warp holds BV columns of V of one value head of one sequence, all of K, in fp32. Its lanes are LK x LV: a lane
// holds NK elements along K of NV columns, and loads them 16 bytes at a time:
//   V first: a load is VEC elements along K; LK lanes cover a row of K, LV rows at a time
//   K first: a load is VEC elements along V; LV lanes cover BV columns, so 32-byte sectors are used whole
// Every load of the state is issued before its first use, and the token's own loads before that.
// ALIGNED: K == BK, V a multiple of BV, states on 16 bytes; other variants mask by the sizes at run time and move
// states of any dtype one element at a time, in the lanes of fp32. Speculative decoding (SpecArgs): states stored after
// every token, start columns by accepted counts, draft trees; checkpoints; states in fp8; and stochastic rounding of
// bf16 ones. Sums over K go in one order whatever the batch: a row's result never depends on its neighbours. Plain
// steps of one token and rows of few have kernels of their own, fused_recurrent_step.cu and fused_recurrent_verify.cu.
//
// Compiles for the CPU with tests/emulated_warp.h.
#include "fused_recurrent.h"
#include "gates.h"
#include "recurrent_state.h"

namespace gdn {

// ---- tokens ----------------------------------------------------------------------------------------------------

// A token as it is in memory: loading one waits for nothing.
template <class L>
struct Token {
  uint32_t q[L::NK], k[L::NK], v, g, beta;
};

// 0 in all lanes, which the compiler does not know. What it knows to be the same in all lanes it moves to uniform
// registers as soon as it is loaded, and waits; with this added, a loaded value is looked at where it is used.
__device__ __forceinline__ uint32_t lane_zero() { return threadIdx.y; }

__device__ __forceinline__ int64_t slot_value(IndexBits x, int32_t words) {
  return index_value({x.low + lane_zero(), x.high + lane_zero()}, words);
}

// Where a warp finds its tokens: offsets of the sequence's first, in elements.
template <class L>
struct Source {
  int64_t q, k, v, g, beta;
  int own;  // the column of V whose value this lane needs

  __device__ __forceinline__ Source(const FusedRecurrentArgs& a, uint32_t row, uint32_t h, uint32_t hv, int own)
      : own(own) {
    q = row * a.q.stride_r + h * a.q.stride_h;
    k = row * a.k.stride_r + h * a.k.stride_h;
    v = row * a.v.stride_r + hv * a.v.stride_h;
    const uint32_t j = hv - h * a.group;  // in its group
    g = gate_at(a.g, row, h, j) + lane_zero();
    beta = gate_at(a.beta, row, h, j) + lane_zero();
  }

  template <class Bits>
  __device__ __forceinline__ void load_rows(Token<L>& x, const FusedRecurrentArgs& a, const L& lanes, uint32_t t,
                                            int K) const {
    const auto* p_q = static_cast<const Bits*>(a.q.data) + q + t * a.q.stride_t;
    const auto* p_k = static_cast<const Bits*>(a.k.data) + k + t * a.k.stride_t;
    const auto* p_v = static_cast<const Bits*>(a.v.data) + v + t * a.v.stride_t;
#pragma unroll
    for (int i = 0; i < L::NK; ++i) {
      const int at = lanes.k_of(i);
      x.k[i] = at < K ? p_k[at] : 0;
      x.q[i] = at < K ? p_q[at] : 0;
    }
    x.v = own < a.V ? p_v[own] : 0;
  }

  __device__ __forceinline__ void load(Token<L>& x, const FusedRecurrentArgs& a, const L& lanes, uint32_t t,
                                       int K) const {
    if (a.dtype == kFP32)
      load_rows<uint32_t>(x, a, lanes, t, K);
    else
      load_rows<uint16_t>(x, a, lanes, t, K);
    if (a.g.at.data) x.g = load_bits(a.g.at.data, g + t * a.g.at.stride_t, a.g.dtype);
    if (a.beta.at.data) x.beta = load_bits(a.beta.at.data, beta + t * a.beta.at.stride_t, a.beta.dtype);
  }
};

// ---- draft trees -----------------------------------------------------------------------------------------------

// The order in which a row's tokens are worked through: one after another, each once, as a target. In a tree a target
// that does not continue from the state at hand starts afresh, from the row's start state, and its ancestors are redone
// first; so ancestors are never read back rounded. The start state must stay in memory for that: a target that replaces
// it comes `last`.
struct Walk {
  int target, token;  // the token worked on is the target, or an ancestor of it
  bool afresh;        // `token` continues from the start state
  uint64_t path;      // ancestors still to be redone, after `token`

  static constexpr int kNone = -2;

  // An entry that is no earlier token counts as -1: the start state.
  static __device__ __forceinline__ int parent(const SpecArgs& s, uint32_t n, int t) {
    const int64_t p = index_value(index_bits(s.parents, n, t * s.parents_step), s.parents.words);
    return p >= 0 && p < t ? static_cast<int>(p) : -1;
  }

  // From the target done to the next; `tokens` when all are.
  __device__ __forceinline__ void next_target(const SpecArgs& s, uint32_t n, int tokens, int last) {
    const int done = target;
    target += target + 1 == last ? 2 : 1;
    if (done == last) target = tokens;
    if (target >= tokens) target = done != last && last >= 0 ? last : tokens;
    if (!s.parents.words || target >= tokens) return;
    int up = parent(s, n, target);
    afresh = up != done;
    for (path = 0; afresh && up >= 0; up = parent(s, n, up)) path |= uint64_t{1} << up;
  }

  __device__ __forceinline__ void next(const SpecArgs& s, uint32_t n, int tokens, int last) {
    afresh = false;
    if (token == target) next_target(s, n, tokens, last);
    token = path ? __ffsll(static_cast<long long>(path)) - 1 : target;
    path &= path - 1;
  }
};

// Values of a token's bits.
template <class N, class L>
__device__ __forceinline__ void values(const Token<L>& x, float (&q)[L::NK], float (&k)[L::NK], float& v) {
#pragma unroll
  for (int i = 0; i < L::NK; ++i) q[i] = N::value(x.q[i]), k[i] = N::value(x.k[i]);
  v = N::value(x.v);
}

// ---- the kernel ------------------------------------------------------------------------------------------------

template <class S, bool VFIRST, int BK, bool ALIGNED, int BV, int WARPS>
__device__ __forceinline__ void fused_recurrent(const FusedRecurrentArgs& a) {
  using L = Lanes<S, VFIRST, BK, BV>;
  const int K = ALIGNED ? BK : a.K, V = a.V;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t head = divide(blockIdx.x, a.head_blocks), n = divide(head, a.heads), hv = head - n * a.HV;
  const int v0 = (static_cast<int>(blockIdx.x - head * a.n_head_blocks) * WARPS + warp) * BV;
  if (v0 >= V) return;
  const L lanes(lane);
  const int i_own = lanes.k % (L::LK / 2) / (L::LK / 2 / L::NV);  // the column this lane works out u and o for

  // What says where everything else is comes first. Program n == N has the tokens of no sequence.
  const bool varlen = a.cu_seqlens.words != 0, pool = a.read.words != 0, outside = varlen && n == a.N;
  IndexBits read{}, write{lane_zero(), lane_zero()}, begin{}, end{};
  uint32_t has_state = a.h0 != nullptr;
  bool refused = false;  // what the row's device-side values say is not to be followed: padding
  if (!outside) {
    int64_t column = 0;
    if (a.spec.accepted.words) {
      column = index_value(index_bits(a.spec.accepted, n), a.spec.accepted.words) - 1;
      refused = column < 0 || column >= a.spec.read_columns;
      if (refused) column = 0;
    }
    if (a.spec.also.words) {
      const int64_t also = index_value(index_bits(a.spec.also, n), a.spec.also.words);
      refused = refused || also < a.min_slot || also >= a.spec.n_also;
    }
    if (pool) read = index_bits(a.read, n, column * a.spec.read_step);
    if (a.has_state) has_state = load_byte(a.has_state + n * a.has_state_stride);
    if (varlen) begin = index_bits(a.cu_seqlens, n), end = index_bits(a.cu_seqlens, n + 1);
    if (a.write.words && !a.spec.every) write = index_bits(a.write, n);
  } else {
    begin = index_bits(a.cu_seqlens, 0), end = index_bits(a.cu_seqlens, a.N);
  }
  uint32_t row = n;
  int tokens = a.T;
  if (varlen) {
    row = bound_value(begin, a.cu_seqlens.words, a.T);
    tokens = max(bound_value(end, a.cu_seqlens.words, a.T) - static_cast<int>(row), 0);
  }

  if (tokens > a.spec.most_tokens) refused = true;

  const Source<L> source(a, row, divide(hv, a.ratio), hv, v0 + lanes.v_of(i_own));
  Token<L> token;
  uint32_t A_log = 0, dt_bias = 0;
  if (tokens > 0 && !outside) {
    source.load(token, a, lanes, 0, K);
    if (a.A_log.at.data) {
      A_log = load_bits(a.A_log.at.data, hv * a.A_log.at.stride_h + lane_zero(), a.A_log.dtype);
      dt_bias = load_bits(a.dt_bias.at.data, hv * a.dt_bias.at.stride_h + lane_zero(), a.dt_bias.dtype);
    }
  }

  // Padding: zeros, and no state touched.
  const int64_t o_row = varlen ? row : static_cast<int64_t>(n) * a.T;
  int64_t o = o_row * a.o_stride + hv * V;
  const int64_t slot = pool ? slot_value(read, a.read.words) : n;
  if (outside || __any_sync(kAll, pool && (refused || slot < a.min_slot || slot >= a.slots))) {
    const int64_t count = outside ? a.T - tokens : tokens;
#pragma unroll 1
    for (int64_t i = lane; i < count * BV; i += 32) {
      const int64_t t = i / BV, at = !outside ? t : t < row ? t - row : t - row + tokens;
      const int v = v0 + static_cast<int>(i % BV);
      if (v < V) store_rounded(a.o, o + at * a.o_stride + v, 0.0f, a.dtype);
    }
    return;
  }

  const int64_t at = static_cast<int64_t>(hv) * a.KV;
  const int64_t h0 = slot * a.h0_stride + at;
  const int32_t dtype = ALIGNED ? Number<S>::code : a.state_dtype;  // of states
  if (tokens == 0) {  // the functional op's final state is its initial state
    if (pool || a.ht == nullptr) return;
#pragma unroll 1
    for (int i = lane; i < BV * K; i += 32) {
      const int k = VFIRST ? i % K : i / BV, v = v0 + (VFIRST ? i / K : i % BV), e = VFIRST ? v * K + k : k * V + v;
      if (v < V)
        static_cast<float*>(a.ht)[n * a.ht_stride + at + e] =
            a.h0 ? state_value(state_bits(a.h0, h0 + e, dtype), dtype) : 0.0f;
    }
    return;
  }

  State<S, L, ALIGNED> state;

  const bool stores = lanes.k % (L::LK / 2 / L::NV) == 0 && lanes.k < L::LK / 2 && source.own < V;
  o += source.own;

  // Where the state after token t goes, as far as there is one state a token; and where intermediate states begin.
  const auto column = [&](int t) { return index_value(index_bits(a.write, n, t * a.spec.write_step), a.write.words); };
  int64_t steps = -1;
  int last = Walk::kNone;
  Walk now{0, 0, true, 0};

  if (a.spec.steps) {
    const IndexArg& slots = a.spec.steps_slots;
    const int64_t i = slots.words ? index_value(index_bits(slots, n), slots.words) : n;
    if (i >= 0 && i < a.spec.n_steps_slots) steps = i * a.spec.steps_stride + at;
  }
  if (a.spec.parents.words) {
    for (int t = 0; a.spec.every && a.ht && t < tokens; ++t)
      if (column(t) == slot) last = t;
    now = {-1, -1, true, 0};
    now.next(a.spec, n, tokens, last);
    now.afresh = true;
    if (now.token != 0) source.load(token, a, lanes, now.token, K);
  }

  const float unit = dtype == kFP8 ? a.spec.scales[hv * a.spec.scales_stride] : 1.0f;

  for (Walk next; now.target < tokens; now = next) {
    if (now.afresh) {
      state.clear();
      if (a.h0 != nullptr && has_state) state.load(a.h0, h0, dtype, lanes, v0, K, V);
    }

    // The token's own numbers, while the state is on its way.
    float q[L::NK], k[L::NK], v;
    if (a.dtype == kBF16)
      values<Number<bf16>>(token, q, k, v);
    else if (a.dtype == kFP16)
      values<Number<fp16>>(token, q, k, v);
    else
      values<Number<float>>(token, q, k, v);
    float qq = 0, kk = 0, qk = 0;
#pragma unroll
    for (int i = 0; i < L::NK; ++i) qq = fmaf(q[i], q[i], qq), kk = fmaf(k[i], k[i], kk), qk = fmaf(q[i], k[i], qk);
    qq = L::sum(qq), kk = L::sum(kk), qk = L::sum(qk);
    const float r_q = a.l2norm ? a.scale * rsqrtf(qq + 1e-6f) : a.scale, r_k = a.l2norm ? rsqrtf(kk + 1e-6f) : 1.0f;
    qk *= r_q * r_k;
#pragma unroll
    for (int i = 0; i < L::NK; ++i) q[i] *= r_q, k[i] *= r_k;

    float g = a.g.at.data ? bits_value(token.g, a.g.dtype) : 0.0f;
    float beta = a.beta.at.data ? bits_value(token.beta, a.beta.dtype) : 1.0f;
    if (a.A_log.at.data) raw_gates(g, beta, bits_value(A_log, a.A_log.dtype), bits_value(dt_bias, a.dt_bias.dtype));
    const float decay = expf(g);
    next = now, next.next(a.spec, n, tokens, last);
    if (next.target < tokens) source.load(token, a, lanes, next.token, K);
    if (now.afresh) state.unpack(dtype, unit);

    // Both read-outs of every column in one exchange: lanes of the lower half along K end with s_k, of the upper with
    // s_q.
    float x[2 * L::NV];
#pragma unroll
    for (int i_v = 0; i_v < L::NV; ++i_v) {
      x[i_v] = x[L::NV + i_v] = 0;
#pragma unroll
      for (int i_k = 0; i_k < L::NK; ++i_k) {
        x[i_v] = fmaf(state.at(i_v, i_k), k[i_k], x[i_v]);
        x[L::NV + i_v] = fmaf(state.at(i_v, i_k), q[i_k], x[L::NV + i_v]);
      }
    }
    const float mine = lanes.sum(x), other = __shfl_xor_sync(kAll, mine, L::LK / 2 * L::STEP);
    const bool upper = lanes.k >= L::LK / 2;
    const float s_k = upper ? other : mine, s_q = upper ? mine : other;
    const float u = beta * fmaf(-decay, s_k, v);
    if (stores && now.token == now.target)
      store_rounded(a.o, o + now.target * a.o_stride, fmaf(u, qk, decay * s_q), a.dtype);
#pragma unroll
    for (int i_v = 0; i_v < L::NV; ++i_v) {
      const float b_u = __shfl_sync(kAll, u, L::lane(i_v * (L::LK / 2 / L::NV), lanes.v));
#pragma unroll
      for (int i_k = 0; i_k < L::NK; ++i_k) state.at(i_v, i_k) = fmaf(k[i_k], b_u, decay * state.at(i_v, i_k));
    }

    if (now.token != now.target) continue;
#pragma unroll 1
    for (int own = 0; own < 2; ++own) {
      void* p = nullptr;
      int64_t i = 0, key = 0;
      int32_t to_dtype = dtype;
      bool seeded = false;
      if (!own) {  // a state on the way: of every token, or a checkpoint
        if (steps >= 0) p = a.spec.steps, i = steps + now.target * a.spec.steps_stride_t, to_dtype = a.spec.steps_dtype;
        if (const CheckpointArgs& c = a.spec.checkpoints; c.data) {
          const int64_t given = c.prefix.words ? index_value(index_bits(c.prefix, n), c.prefix.words) : 0;
          const int64_t before = given > 0 ? given : 0;
          const int64_t after = before + now.target + 1, j = after / c.every - before / c.every - 1;
          if (after % c.every == 0 && j < c.columns) {
            const int64_t to = index_value(index_bits(c.slots, n, j * c.slots_step), c.slots.words);
            if (to >= a.min_slot && to < c.n_slots) p = c.data, i = to * c.stride + at, to_dtype = c.dtype;
          }
        }
      } else if (a.ht && (a.spec.every || now.target == tokens - 1)) {  // the state itself
        const int64_t to = a.spec.every ? column(now.target) : a.write.words ? slot_value(write, a.write.words) : slot;
        const bool kept = last >= 0 && to == slot && now.target != last;
        if (kept || (pool && (to < a.min_slot || to >= a.slots))) break;
        p = a.ht, i = to * a.ht_stride + at;
        if (a.ht_fp32) to_dtype = kFP32;
        seeded = dtype == kBF16 && a.spec.seed;
        if (seeded) key = rounding_key(*a.spec.seed, to);
      }
      if (p == nullptr) continue;
      if constexpr (ALIGNED) {
        if (!seeded && (reinterpret_cast<uint64_t>(p) + i * size_of(to_dtype)) % 16 == 0) {
          if (to_dtype == kFP32)
            state.store(static_cast<float*>(p) + i, lanes, v0, K, V);
          else if (to_dtype == kBF16)
            state.store(static_cast<bf16*>(p) + i, lanes, v0, K, V);
          else
            state.store(static_cast<fp16*>(p) + i, lanes, v0, K, V);
          continue;
        }
      }
      const float divisor = to_dtype == kFP8 ? unit : 1.0f;
      state.store_each(p, i, to_dtype, lanes, v0, K, V, [&](float x, int k, int v) {
        if (!seeded) return x / divisor;
        const uint32_t random = rounding_bits(key, static_cast<uint32_t>(at) + k * V + v);
        return __uint_as_float(round_at_random(__float_as_uint(x), random));
      });
    }
  }
}

}  // namespace gdn

#define GDN_KERNEL(symbol, S, VFIRST, BK, ALIGNED, BV, WARPS)                                                          \
  extern "C" __global__ void __launch_bounds__(WARPS * 32) symbol(const __grid_constant__ gdn::FusedRecurrentArgs a) { \
    gdn::fused_recurrent<S, VFIRST, BK, ALIGNED, BV, WARPS>(a);                                                        \
  }
GDN_VARIANTS(GDN_KERNEL)
