// The gated delta rule on rows of up to 16 tokens, such as a draft and what it continues, on states of K = V = 64 or
// 128. Nothing waits for the state after one token to go on with the next: with f_t what is left of the start state h
// after token t, and d_ts of what token s wrote (products of e^g along the path to t: the tokens before it, or its
// ancestors in a draft tree),
//   x = h^T z over all k and q                            one pass over the state, in registers
//   u_t = beta_t (v_t - f_t x_k - sum_s d_ts (k_s . k_t) u_s);  o_t = f_t x_q + sum_s d_ts (k_s . q_t) u_s
// and states, h_t = e^g_t h_parent + k_t u_t^T, are formed only where they are to be stored: after every token, or the
// last. A branch of a tree begins again at h.
//
// A block has BV columns of V of one value head of one row. As in fused_recurrent_step.cu, it asks for the state of a
// later block, and the launch may overlap the end of the kernel ahead.
//
// Compiles for the CPU with tests/emulated_warp.h.
#include "fused_recurrent_verify.h"
#include "head_state.h"
#include "overlap.h"
#include "tokens.h"

namespace gdn {

// Tokens are taken NT at a time: their k and their q in turn.
constexpr int NT = 4, kVectors = 2 * NT;

struct Tokens {
  int parent[kMostVerified];                         // -1: the start state
  uint32_t path[kMostVerified];                      // bits of the tokens from the start state to this one
  float decay[kMostVerified], beta[kMostVerified];   // e^g
  float left[kMostVerified][kMostVerified];          // [t][s]: d_ts, for s on the path to t
  float frozen[kMostVerified];                       // f_t
  float products[kMostVerified][2 * kMostVerified];  // of the k of token s with the vectors, in their order

  // Of token s with the k of token t; with its q, NT further on.
  __device__ __forceinline__ const float* product(int s, int t) const {
    return products[s] + t / NT * kVectors + t % NT;
  }

  // By one warp, a lane each for the tokens and the start state: what is left of it after each later token.
  __device__ __forceinline__ void follow(int tokens) {
    const int s = threadIdx.x % 32;
    const bool start = s == kMostVerified;
    if (s > kMostVerified) return;
    for (int t = 0; t < tokens; ++t) {
      const int p = parent[t];
      if (start) {
        frozen[t] = (p < 0 ? 1.0f : frozen[p]) * decay[t];
        path[t] = (p < 0 ? 0 : path[p]) | 1u << t;
      } else {
        left[t][s] = s < t ? (p < s ? 0.0f : left[p][s]) * decay[t] : 1.0f;
      }
    }
  }
};

template <class S, bool VFIRST, int K, int BV>
__device__ __forceinline__ void fused_recurrent_verify(const FusedRecurrentVerifyArgs& args) {
  using State = HeadState<S, VFIRST, K, BV, 8>;
  constexpr int V = K, THREADS = State::THREADS, WARPS = THREADS / 32, SLICES = V / BV;
  constexpr int PART = State::PARTS * NT * BV;
  const FusedRecurrentArgs& a = args.rule;
  const SpecArgs& spec = a.spec;
  __shared__ float z[2 * kMostVerified * K];  // the vectors
  __shared__ float sums[2 * PART];            // read-outs
  __shared__ float u[kMostVerified * BV];
  __shared__ Tokens shared;

  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const auto head_of = [&](uint32_t block) { return block / SLICES; };
  const uint32_t n = divide(head_of(blockIdx.x), a.heads), hv = head_of(blockIdx.x) - n * a.HV, h = divide(hv, a.ratio);
  const int v0 = static_cast<int>(blockIdx.x % SLICES) * BV, v = v0 + tid;
  const int64_t at = static_cast<int64_t>(hv) * a.KV + State::origin(v0);

  // Where row n starts from; padding where its device-side values are not to be followed.
  const auto start = [&](uint32_t n, int64_t& slot) {
    slot = n;
    int64_t column = 0;
    if (spec.accepted.words) {
      column = load_index(spec.accepted, n) - 1;
      if (column < 0 || column >= spec.read_columns) return false;
    }
    if (spec.also.words) {
      const int64_t also = load_index(spec.also, n);
      if (also < a.min_slot || also >= spec.n_also) return false;
    }
    if (!a.read.words) return true;
    const IndexBits bits = index_bits(a.read, n, column * spec.read_step);
    slot = index_value(bits, a.read.words);
    return slot >= a.min_slot && slot < a.slots;
  };
  const auto prefetch = [&](uint32_t block, int first, int threads) {
    const uint32_t n = divide(head_of(block), a.heads), hv = head_of(block) - n * a.HV;
    int64_t slot;
    if (n < static_cast<uint32_t>(a.N) && a.h0 != nullptr && start(n, slot))
      State::prefetch(static_cast<const S*>(a.h0) + slot * a.h0_stride + static_cast<int64_t>(hv) * a.KV +
                          State::origin(static_cast<int>(block % SLICES) * BV),
                      V, first, threads);
  };
  if (blockIdx.x < args.ahead) prefetch(blockIdx.x, tid, THREADS);
  wait_for_kernel_ahead();
  let_next_kernel_start();

  // The row. Program n == N has the tokens of no sequence.
  const bool varlen = a.cu_seqlens.words != 0, outside = varlen && n == static_cast<uint32_t>(a.N);
  uint32_t row = n;
  int tokens = a.T;
  if (varlen) {
    const IndexBits begin = index_bits(a.cu_seqlens, outside ? 0 : n);
    const IndexBits end = index_bits(a.cu_seqlens, outside ? a.N : n + 1);
    row = bound_value(begin, a.cu_seqlens.words, a.T);
    tokens = max(bound_value(end, a.cu_seqlens.words, a.T) - static_cast<int>(row), 0);
  }
  const int64_t o = (varlen ? row : static_cast<int64_t>(row) * a.T) * a.o_stride + hv * V;
  int64_t slot = -1;
  if (outside || !start(n, slot) || tokens > spec.most_tokens) {  // padding: zeros, nothing touched
    const int64_t count = outside ? a.T - tokens : tokens;
#pragma unroll 1
    for (int64_t i = tid; i < count * BV; i += THREADS) {
      const int64_t t = i / BV, to = !outside ? t : t < row ? t - row : t - row + tokens;
      store_rounded(a.o, o + to * a.o_stride + v0 + i % BV, 0.0f, a.dtype);
    }
    return;
  }
  if (tokens == 0) return;

  // Loads of the first tokens, then of the state, which stay on their way.
  Vector<K> vector;
  uint32_t v_bits[NT];
  const auto load_vector = [&](int t0) {
    const int t = t0 + warp % NT;
    if (t < tokens) vector.load(warp < NT ? a.k : a.q, row, t, h, K, a.dtype);
  };
  const auto load_v = [&](int t0) {
#pragma unroll
    for (int i = 0; i < NT; ++i)
      if (tid < BV && t0 + i < tokens)
        v_bits[i] = load_bits(a.v.data, row * a.v.stride_r + (t0 + i) * a.v.stride_t + hv * a.v.stride_h + v, a.dtype);
  };
  load_vector(0);
  load_v(0);
  const S* const from = static_cast<const S*>(a.h0) + slot * a.h0_stride + at;
  State state;
  const bool has_state = a.h0 != nullptr && (!a.has_state || load_byte(a.has_state + n * a.has_state_stride));
  const auto load_state = [&] {
    if (has_state)
      state.load(from, V);
    else
      state.clear();
  };
  load_state();
  if (tid >= THREADS / 2 && blockIdx.x + args.ahead < gridDim.x)  // half of the threads wait for where that is
    prefetch(blockIdx.x + args.ahead, tid - THREADS / 2, THREADS / 2);

  if (tid < tokens) {
    int64_t parent = tid - 1;
    if (spec.parents.words) {
      parent = index_value(index_bits(spec.parents, n, tid * spec.parents_step), spec.parents.words);
      if (parent < 0 || parent >= tid) parent = -1;
    }
    shared.parent[tid] = static_cast<int>(parent);
    float g;
    token_gates(a, row, tid, hv, h, g, shared.beta[tid]);
    shared.decay[tid] = expf(g);
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

  if (warp == WARPS - 1) shared.follow(tokens);
#pragma unroll 1
  for (int s = warp; s < tokens; s += WARPS)
#pragma unroll 1
    for (int t0 = s / NT * NT; t0 < tokens; t0 += NT) {
      float y[kVectors] = {};
#pragma unroll
      for (int i = 0; i < K / 32; ++i) {
        const float x = z[(s / NT * kVectors + s % NT) * K + lane + 32 * i];
#pragma unroll
        for (int c = 0; c < kVectors; ++c) y[c] = fmaf(x, z[(2 * t0 + c) * K + lane + 32 * i], y[c]);
      }
      spread_sums<32, 1, kVectors>(y, lane);
      if (lane % (32 / kVectors) == 0) shared.products[s][2 * t0 + lane / (32 / kVectors)] = y[0];
    }

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
    float mine[NT];
#pragma unroll
    for (int i = 0; i < NT; ++i) {
      const int t = t0 + i;
      if (t >= tokens) break;
      const float frozen = shared.frozen[t];
      float x_k = frozen * State::template read<NT>(sums, i, tid);
      float x_q = frozen * State::template read<NT>(sums + PART, i, tid);
      const auto add = [&](int s, float u) {
        if (!(shared.path[t] >> s & 1)) return;  // whatever u is
        u *= shared.left[t][s];
        x_k = fmaf(shared.product(s, t)[0], u, x_k), x_q = fmaf(shared.product(s, t)[NT], u, x_q);
      };
#pragma unroll 1
      for (int s = 0; s < t0; ++s) add(s, u[s * BV + tid]);
#pragma unroll
      for (int s = 0; s < i; ++s) add(t0 + s, mine[s]);
      mine[i] = u[t * BV + tid] = shared.beta[t] * (bits_value(v_bits[i], a.dtype) - x_k);
      store_rounded(a.o, o + t * a.o_stride + v, fmaf(shared.product(t, t)[NT], mine[i], x_q), a.dtype);
    }
  }

  // Where states go.
  int64_t steps = -1;
  if (spec.steps) {
    const int64_t i = spec.steps_slots.words ? load_index(spec.steps_slots, n) : n;
    if (i >= 0 && i < spec.n_steps_slots) steps = i * spec.steps_stride + at;
  }
  const bool every = a.ht != nullptr && spec.every, each = every || steps >= 0;
  if (a.ht == nullptr && !each) return;
  const auto slot_after = [&](int t) {
    if (every) return index_value(index_bits(a.write, n, t * spec.write_step), a.write.words);
    return a.write.words ? load_index(a.write, n) : slot;
  };
  // The start state must stay in memory for the branches of a tree: the last token whose state replaces it comes last.
  int last = -1;
  if (every && spec.parents.words)
    for (int t = 0; t < tokens; ++t)
      if (slot_after(t) == slot) last = t;
  __syncthreads();

  int at_hand = -1;
#pragma unroll 1
  for (int i = each ? 0 : tokens - 1; i < tokens; ++i) {
    const int t = last < 0 || i < last ? i : i + 1 < tokens ? i + 1 : last;
    uint32_t path = 1u << t;  // tokens that are still to be written
    if (shared.parent[t] != at_hand) {
      path = shared.path[t];
      if (at_hand >= 0) {
        load_state();
        state.unpack();
      }
    }
#pragma unroll 1
    for (; path != 0; path &= path - 1) {
      const int s = __ffsll(path) - 1;
      state.fold(shared.decay[s], z + (s / NT * kVectors + s % NT) * K, u + s * BV, 1);
    }
    at_hand = t;

#pragma unroll 1
    for (int own = 0; own < 2; ++own) {  // aside, then in its own slot
      void* to = spec.steps;
      int64_t i = steps + t * spec.steps_stride_t;
      int32_t dtype = spec.steps_dtype;
      bool stored = steps >= 0;
      if (own) {
        if (a.ht == nullptr || (!every && t != tokens - 1)) break;
        const int64_t after = slot_after(t);
        to = a.ht, i = after * a.ht_stride + at, dtype = a.ht_fp32 ? kFP32 : Number<S>::code;
        stored =
            !(last >= 0 && after == slot && t != last) && (!a.read.words || (after >= a.min_slot && after < a.slots));
      }
      if (!stored) continue;
      if (dtype == kFP32)
        state.store(static_cast<float*>(to) + i, V);
      else if (dtype == kBF16)
        state.store(static_cast<bf16*>(to) + i, V);
      else
        state.store(static_cast<fp16*>(to) + i, V);
    }
  }
}

}  // namespace gdn

#define GDN_KERNEL(symbol, S, VFIRST, BK, BV)                           \
  extern "C" __global__ void __launch_bounds__(256, 2)                  \
      symbol(const __grid_constant__ gdn::FusedRecurrentVerifyArgs a) { \
    gdn::fused_recurrent_verify<S, VFIRST, BK, BV>(a);                  \
  }
GDN_VARIANTS(GDN_KERNEL)
