// Rows of few tokens as chunks of the gated delta rule. With f_t what is left of the start state h after token t, and
// d_ts of what token s wrote (products of e^g along the path to t: the tokens before it, or its ancestors in a draft
// tree),
//   x = h^T z over all k and q                            one pass over the state, in registers
//   u_t = beta_t (v_t - f_t x_k - sum_s d_ts (k_s . k_t) u_s);  o_t = f_t x_q + sum_s d_ts (k_s . q_t) u_s
// so that nothing waits for the state after one token to go on with the next. States, h_t = e^g_t h_parent + k_t u_t^T,
// are formed only where they are to be stored: after every token, or the last. A branch of a tree begins again at h.
#pragma once

#include "head_state.h"
#include "tokens.h"

namespace gdn {

// Tokens are taken NT at a time: their k and their q in turn.
constexpr int NT = 4, kVectors = 2 * NT;

// Where the k of token t is among the vectors; its q is NT further on.
__device__ __forceinline__ int vector_of(int t) { return t / NT * kVectors + t % NT; }

// Where row n's state starts, as far as index tensors say; where their values are not to be followed, nowhere. In
// steps, so that several rows' loads are under way at once: the first when it is made, the second in `follow`.
struct RowStart {
  uint32_t n;
  bool known;          // so far
  int64_t column = 0;  // of `read`
  IndexBits accepted{}, also{}, slot{};

  __device__ __forceinline__ RowStart(const FusedRecurrentArgs& a, uint32_t n, bool known) : n(n), known(known) {
    if (known && a.spec.accepted.words) accepted = index_bits(a.spec.accepted, n);
    if (known && a.spec.also.words) also = index_bits(a.spec.also, n);
  }

  __device__ __forceinline__ void follow(const FusedRecurrentArgs& a) {
    const SpecArgs& spec = a.spec;
    if (spec.accepted.words) {
      column = index_value(accepted, spec.accepted.words) - 1;
      known = known && column >= 0 && column < spec.read_columns;
    }
    if (known && a.read.words) slot = index_bits(a.read, n, column * spec.read_step);
  }

  // The slot; -1: none.
  __device__ __forceinline__ int64_t value(const FusedRecurrentArgs& a) const {
    const SpecArgs& spec = a.spec;
    if (!known) return -1;
    if (spec.also.words) {
      const int64_t other = index_value(also, spec.also.words);
      if (other < a.min_slot || other >= spec.n_also) return -1;
    }
    if (!a.read.words) return n;
    const int64_t at = index_value(slot, a.read.words);
    return at >= a.min_slot && at < a.slots ? at : -1;
  }
};

// What a block knows of its row's tokens.
template <int MOST>
struct Tokens {
  int parent[MOST];                // -1: the start state
  uint32_t path[MOST];             // bits of the tokens from the start state to this one
  float decay[MOST], beta[MOST];   // e^g
  float left[MOST][MOST];          // [t][s]: d_ts, for s on the path to t
  float frozen[MOST];              // f_t
  float products[MOST][2 * MOST];  // of the k of token s with the vectors, in their order
  int64_t to[MOST], steps;         // the slot that the state after a token goes to, and where in `steps`; -1: nowhere

  // Of token s with the k of token t; with its q, NT further on.
  __device__ __forceinline__ const float* product(int s, int t) const { return products[s] + vector_of(t); }

  // By one warp, a lane a token: what index tensors say of the tokens of row n, whose state starts from `slot`.
  __device__ __forceinline__ void load_row(const FusedRecurrentArgs& a, uint32_t n, int64_t slot, int tokens) {
    const SpecArgs& spec = a.spec;
    const int t = threadIdx.x % 32;
    const bool stored = t < tokens && a.ht != nullptr && (spec.every || t == tokens - 1);
    IndexBits up{}, place{}, row{};
    if (t < tokens && spec.parents.words) up = index_bits(spec.parents, n, t * spec.parents_step);
    if (stored && a.write.words) place = index_bits(a.write, n, spec.every ? t * spec.write_step : 0);
    if (spec.steps_slots.words) row = index_bits(spec.steps_slots, n);
    if (t == 0) {
      const int64_t i = spec.steps_slots.words ? index_value(row, spec.steps_slots.words) : n;
      steps = spec.steps != nullptr && i >= 0 && i < spec.n_steps_slots ? i * spec.steps_stride : -1;
    }
    if (t >= tokens) return;
    const int64_t before = spec.parents.words ? index_value(up, spec.parents.words) : t - 1;
    parent[t] = before >= 0 && before < t ? static_cast<int>(before) : -1;
    if (a.write.words) slot = index_value(place, a.write.words);
    to[t] = stored && (!a.read.words || (slot >= a.min_slot && slot < a.slots)) ? slot : -1;
  }

  // By one warp, a lane a token.
  template <class Args>
  __device__ __forceinline__ void set_gates(const Args& a, const TokenGates& gates, int tokens) {
    const int t = threadIdx.x % 32;
    if (t >= tokens) return;
    float g;
    gates.values(a, g, beta[t]);
    decay[t] = expf(g);
  }

  // By one warp, a lane each for the tokens and the start state: what is left of it after each later token.
  __device__ __forceinline__ void follow(int tokens) {
    const int s = threadIdx.x % 32;
    if (s > MOST) return;
    for (int t = 0; t < tokens; ++t) {
      const int p = parent[t];
      if (s == MOST) {
        frozen[t] = (p < 0 ? 1.0f : frozen[p]) * decay[t];
        path[t] = (p < 0 ? 0 : path[p]) | 1u << t;
      } else {
        left[t][s] = s < t ? (p < s ? 0.0f : left[p][s]) * decay[t] : 1.0f;
      }
    }
  }

  // By all warps: what tokens are to each other, z [.., K] being the vectors.
  template <int K, int WARPS>
  __device__ __forceinline__ void relate(const float* z, int tokens) {
    const int lane = threadIdx.x % 32;
    if (threadIdx.x / 32 == WARPS - 1) follow(tokens);
#pragma unroll 1
    for (int s = threadIdx.x / 32; s < tokens; s += WARPS)
#pragma unroll 1
      for (int t0 = s / NT * NT; t0 < tokens; t0 += NT) {
        float y[kVectors] = {};
#pragma unroll
        for (int i = lane; i < K; i += 32) {
          const float x = z[vector_of(s) * K + i];
#pragma unroll
          for (int c = 0; c < kVectors; ++c) y[c] = fmaf(x, z[(2 * t0 + c) * K + i], y[c]);
        }
        spread_sums<32, 1, kVectors>(y, lane);
        if (lane % (32 / kVectors) == 0) products[s][2 * t0 + lane / (32 / kVectors)] = y[0];
      }
  }

  // By a thread a column: u [.., BV] and out(t, o_t) of tokens t0 on, from their read-outs and value(i) of token t0 +
  // i.
  template <int BV, class Value, class Out>
  __device__ __forceinline__ void solve(int t0, int tokens, const float (&read_k)[NT], const float (&read_q)[NT],
                                        float* u, Value value, Out out) const {
    const int column = threadIdx.x;
    float mine[NT];
#pragma unroll
    for (int i = 0; i < NT; ++i) {
      const int t = t0 + i;
      if (t >= tokens) break;
      float x_k = frozen[t] * read_k[i], x_q = frozen[t] * read_q[i];
      const auto add = [&](int s, float u) {
        if (!(path[t] >> s & 1)) return;  // whatever u is
        u *= left[t][s];
        x_k = fmaf(product(s, t)[0], u, x_k), x_q = fmaf(product(s, t)[NT], u, x_q);
      };
#pragma unroll 1
      for (int s = 0; s < t0; ++s) add(s, u[s * BV + column]);
#pragma unroll
      for (int s = 0; s < i; ++s) add(t0 + s, mine[s]);
      mine[i] = u[t * BV + column] = beta[t] * (value(i) - x_k);
      out(t, fmaf(product(t, t)[NT], mine[i], x_q));
    }
  }

  // By all threads: the states that are to be stored, of the tile that is element `at` of a slot. `load` gets the start
  // state, that of `slot`, again.
  template <class S, int K, int BV, class State, class Load>
  __device__ __forceinline__ void store_states(const FusedRecurrentArgs& a, int64_t slot, int tokens, int64_t at,
                                               const float* z, const float* u, State& state, Load load) const {
    const SpecArgs& spec = a.spec;
    const bool each = steps >= 0 || (a.ht != nullptr && spec.every);
    if (a.ht == nullptr && !each) return;
    // The start state must stay in memory for a tree's branches: the last token whose state replaces it comes last.
    int last = -1;
    if (spec.every && spec.parents.words)
      for (int t = 0; t < tokens; ++t)
        if (to[t] == slot) last = t;

    int at_hand = -1;
    state.gather();
#pragma unroll 1
    for (int i = each ? 0 : tokens - 1; i < tokens; ++i) {
      const int t = last < 0 || i < last ? i : i + 1 < tokens ? i + 1 : last;
      uint32_t missing = 1u << t;  // tokens that are still to be written
      if (parent[t] != at_hand) {
        missing = path[t];
        if (at_hand >= 0) load();
      }
#pragma unroll 1
      for (; missing != 0; missing &= missing - 1) {
        const int s = __ffsll(missing) - 1;
        state.fold(decay[s], z + vector_of(s) * K, u + s * BV, 1);
      }
      at_hand = t;

#pragma unroll 1
      for (int own = 0; own < 2; ++own) {  // aside, then in its own slot
        void* p = own ? a.ht : spec.steps;
        const int64_t begin = own ? to[t] * a.ht_stride : steps + t * spec.steps_stride_t;
        const int32_t dtype = own ? (a.ht_fp32 ? kFP32 : Number<S>::code) : spec.steps_dtype;
        const bool stored = own ? to[t] >= 0 && (last < 0 || to[t] != slot || t == last) : steps >= 0;
        if (!stored) continue;
        if (dtype == kFP32)
          state.store(static_cast<float*>(p) + begin + at, a.V);
        else if (dtype == kBF16)
          state.store(static_cast<bf16*>(p) + begin + at, a.V);
        else
          state.store(static_cast<fp16*>(p) + begin + at, a.V);
      }
    }
  }
};

}  // namespace gdn
