// What the host functions of the token loop share: sizes, checks of the tokens, and the launch.
#pragma once

#include <algorithm>
#include <cmath>

#include "gen/kernels.h"
#include "runtime/args.h"

namespace gdn {

struct RecurrentSizes {
  int64_t B, T, H, K, HV, V, N;  // N sequences: rows of the batch, or packed in its only row
  bool packed;

  RecurrentSizes(const View& q, const View& v, const View& cu_seqlens)
      : B(q.size(0)),
        T(q.size(1)),
        H(q.size(2)),
        K(q.size(3)),
        HV(v.size(2)),
        V(v.size(3)),
        N(cu_seqlens.defined() ? std::max<int64_t>(cu_seqlens.size(0), 1) - 1 : B),
        packed(cu_seqlens.defined()) {}
  // One token a row.
  RecurrentSizes(int64_t B, int64_t H, int64_t K, int64_t HV, int64_t V)
      : B(B), T(1), H(H), K(K), HV(HV), V(V), N(B), packed(false) {}

  int64_t ratio() const { return H >= 1 ? HV / H : 0; }
};

inline Checks& check_tokens(Checks& checks, const RecurrentSizes& s, const View& q, const View& k, const View& v,
                            const View& cu_seqlens) {
  return checks.activation("q", q, {-1, -1, -1, -1}, {DType::bf16, DType::fp16, DType::fp32})
      .activation("k", k, {s.B, s.T, s.H, s.K}, {q.dtype})
      .activation("v", v, {s.B, s.T, -1, -1}, {q.dtype})
      .that(s.H >= 1, "q", "at least one head", q)
      .that(s.K >= 1 && s.K <= 256, "q", "a head size K of 1 to 256", s.K)
      .that(s.V >= 1 && s.V <= 256, "v", "a head size V of 1 to 256", s.V)
      .that(s.H < 1 || (s.HV >= 1 && s.HV % s.H == 0), "v", "heads in a multiple of q's", s.HV)
      .that(s.T <= INT32_MAX, "q", "fewer than 2^31 tokens in a row", s.T)
      .cu_seqlens(cu_seqlens, s.B);
}

// Gates of a step on a pool, [B, T, HV] or [B, T, H, ratio]: given (g, beta), or raw (A_log, a, dt_bias, b).
struct RecurrentGates {
  View g = {}, beta = {}, A_log = {}, a = {}, dt_bias = {}, b = {};

  bool raw() const { return A_log.defined() || a.defined() || dt_bias.defined() || b.defined(); }

  void check(Checks& checks, const RecurrentSizes& s, DType activation) const {
    const auto all = {std::pair("A_log", &A_log), std::pair("a", &a), std::pair("dt_bias", &dt_bias),
                      std::pair("b", &b)};
    const auto given = {std::pair("g", &g), std::pair("beta", &beta)};
    if (raw()) {
      for (const auto& [name, t] : all)
        checks.that(t->defined(), name, "a tensor with the other raw gates (A_log, a, dt_bias, b)", "None");
      for (const auto& [name, t] : given)
        checks.that(!t->defined(), name, "None with raw gates (A_log, a, dt_bias, b)", "a tensor");
    } else {
      checks.that(g.defined(), "g", "a tensor, or raw gates (A_log, a, dt_bias, b)", "None");
    }
    for (const auto& [name, t] : {std::pair("g", &g), std::pair("beta", &beta), std::pair("a", &a), std::pair("b", &b)})
      if (t->dim == 4)
        checks.gate(name, *t, {s.B, s.T, s.H, s.ratio()}, activation);
      else
        checks.gate(name, *t, {s.B, s.T, s.HV}, activation);
    checks.gate("A_log", A_log, {s.HV}, activation).gate("dt_bias", dt_bias, {s.HV}, activation);
  }

  template <class Args>
  void fill(Args& args, const RecurrentSizes& s) const {
    const auto gate = [&](const View& t) { return gate_arg(t, s.packed, s.ratio(), t.dim == 4); };
    args.g = gate(raw() ? a : g), args.beta = gate(raw() ? b : beta);
    args.A_log = gate(A_log), args.dt_bias = gate(dt_bias);
  }
};

// Slots of a pool in fp8 are its numbers times `scales` [HV]; those in bf16 may be rounded at random, by `seed` [1].
inline void check_rounding(Checks& checks, const RecurrentSizes& s, const View& pool, const View& scales,
                           const View& seed) {
  if (pool.dtype == DType::fp8)
    checks.shape("pool_scale", scales, {s.HV})
        .dtype("pool_scale", scales, {DType::fp32})
        .device("pool_scale", scales)
        .no_grad("pool_scale", scales);
  else
    checks.that(!scales.defined(), "pool_scale", "None, as the pool is not fp8", "a tensor");
  if (seed.defined())
    checks.shape("rounding_seed", seed, {1})
        .dtype("rounding_seed", seed, {DType::i64})
        .device("rounding_seed", seed)
        .that(pool.dtype == DType::bf16, "rounding_seed", "None, as the pool is not bf16", "a tensor");
}

// Another pool with slots of the same rows: a row is padding in both or in none. Without slots of its own it has the
// same ones; `count` of them.
struct SecondPool {
  View slots = {};
  int64_t count = INT64_MAX;

  int64_t limit(int64_t first) const { return slots.defined() ? first : std::min(first, count); }
};

// Where the states of a pool are read and written, and what speculative decoding adds to it.
struct PoolSlots {
  View read = {}, write = {}, accepted = {}, steps = {}, steps_slots = {}, parents = {};
  View scales = {}, seed = {};  // see check_rounding
  SecondPool second = {};
  int64_t most_tokens = INT32_MAX;  // a row with more is padding, and one with more accepted

  // Whether a state is stored after every token: the table that says where has a column for each.
  bool every() const { return (write.defined() ? write : read).dim == 2; }
  // Whether a plain step would not do: reading and writing one slot a row, as the pool's numbers are.
  bool special() const { return read.dim == 2 || every() || steps.defined() || parents.defined() || seed.defined(); }
  bool more() const { return special() || second.slots.defined(); }

  void check(Checks& checks, const RecurrentSizes& s, const View& pool, bool state_v_first) const {
    check_rounding(checks, s, pool, scales, seed);
    const auto columns = [&](const char* arg, const View& t) {
      checks.that(t.size(1) >= 1 && (s.packed || t.size(1) >= s.T), arg, "a column for every token of a row", t);
    };
    const auto slots = [&](const char* arg, const View& t) {
      if (t.dim != 2) return void(checks.index(arg, t, {s.N}));
      checks.index(arg, t, {s.N, -1});
      columns(arg, t);
    };
    slots("ssm_indices", read);
    if (write.defined()) slots("ssm_write_indices", write);
    if (accepted.defined())
      checks.index("num_accepted_tokens", accepted, {s.N})
          .that(read.dim == 2, "ssm_indices", "two dimensions [N, S + 1] with num_accepted_tokens", read);
    if (steps.defined()) {
      checks.pool("intermediate_states", steps, {-1, -1, s.HV, state_v_first ? s.V : s.K, state_v_first ? s.K : s.V},
                  {DType::fp32, DType::bf16, DType::fp16});
      columns("intermediate_states", steps);
      checks.that(steps_slots.defined() || steps.size(0) >= s.N, "intermediate_states",
                  "a slot for every row without intermediate_indices", steps);
    }
    if (steps_slots.defined())
      checks.index("intermediate_indices", steps_slots, {s.N})
          .that(steps.defined(), "intermediate_indices", "None without intermediate_states", "a tensor");
    if (parents.defined()) {
      checks.index("parents", parents, {s.N, -1})
          .that(parents.size(1) <= kMostTreeTokens, "parents", "at most 64 tokens a row", parents.size(1));
      columns("parents", parents);
    }
  }

  void fill(FusedRecurrentArgs& a) const {
    SpecArgs& spec = a.spec;
    const auto step = [](const View& t) { return t.dim == 2 ? t.stride(1) * (t.dtype == DType::i64 ? 2 : 1) : 0; };
    const View& to = every() && !write.defined() ? read : write;
    a.read = index_arg(read), spec.read_step = step(read),
    spec.read_columns = static_cast<int32_t>(std::min(read.size(1), most_tokens));
    a.write = index_arg(to), spec.write_step = step(to), spec.every = every();
    spec.accepted = index_arg(accepted);
    spec.steps = steps.data, spec.steps_dtype = static_cast<int32_t>(steps.dtype);
    spec.steps_slots = index_arg(steps_slots), spec.n_steps_slots = steps.size(0);
    spec.steps_stride = steps.stride(0), spec.steps_stride_t = steps.stride(1);
    spec.scales = static_cast<const float*>(scales.data), spec.scales_stride = scales.stride(0);
    spec.seed = static_cast<const int64_t*>(seed.data);
    spec.parents = index_arg(parents), spec.parents_step = step(parents);
    spec.also = index_arg(second.slots), spec.n_also = second.count;
    spec.most_tokens = static_cast<int32_t>(std::min(most_tokens, columns()));
  }

  // The most tokens of a row that the tables have room for.
  int64_t columns() const {
    int64_t most = INT32_MAX;
    for (const View* t : {&read, &write, &steps, &parents})
      if (t->dim >= 2) most = std::min(most, t->size(1));
    return most;
  }
};

// Whether states [.., HV, S0, S1] of whole rows can be moved 16 bytes at a time.
inline bool states_aligned(const View& t) {
  bool aligned = reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
  for (int64_t d = 0; d + 3 < t.dim; ++d) aligned = aligned && t.stride(d) * element_size(t.dtype) % 16 == 0;
  return aligned;
}

// The arguments that every op has; tokens, gates and where states are read and written are the op's own.
inline FusedRecurrentArgs recurrent_args(const RecurrentSizes& s, DType dtype, std::optional<double> scale,
                                         bool l2norm) {
  FusedRecurrentArgs a{};
  a.heads = divisor(s.HV), a.ratio = divisor(s.ratio());
  a.N = static_cast<int32_t>(s.N), a.T = static_cast<int32_t>(s.T);
  a.HV = static_cast<int32_t>(s.HV), a.K = static_cast<int32_t>(s.K), a.V = static_cast<int32_t>(s.V);
  a.KV = a.K * a.V, a.group = static_cast<int32_t>(s.ratio()), a.o_stride = s.HV * s.V;
  a.scale = static_cast<float>(scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
  a.dtype = static_cast<int32_t>(dtype);
  a.l2norm = l2norm;
  a.spec.most_tokens = INT32_MAX;
  return a;
}

// One token a row of a plain step: BV columns of V a block, fewer where there are not enough heads to fill the GPU;
// results have the same bits.
inline void launch_step(const char* op, const RecurrentSizes& s, Device device, DType S, bool state_v_first,
                        const FusedRecurrentArgs& a) {
  const int64_t heads = s.N * s.HV, BV = heads < 128 ? 32 : 64, tiles = heads * (s.V / BV);
  const auto kernel = pick<kernels::fused_recurrent_step>(
      op, device, {.S = S, .VFIRST = state_v_first, .BK = static_cast<int>(s.K), .BV = static_cast<int>(BV)});
  kernel.launch(tiles, {.rule = a, .ahead = fetch_distance(device, s.K * BV * element_size(S))});
}

// Whether no row has more than kMostVerified tokens, and states are stored whole and rounded to nearest: short_rows.h.
inline bool short_rows(const RecurrentSizes& s, const FusedRecurrentArgs& a) {
  const SpecArgs& spec = a.spec;
  const int64_t size = spec.steps ? element_size(static_cast<DType>(spec.steps_dtype)) : 0;
  const bool aside = reinterpret_cast<uintptr_t>(spec.steps) % 16 == 0 && spec.steps_stride * size % 16 == 0 &&
                     spec.steps_stride_t * size % 16 == 0;
  return s.T >= 1 && (s.packed ? spec.most_tokens : s.T) <= kMostVerified && aside && spec.seed == nullptr &&
         spec.checkpoints.data == nullptr;
}

// Launches the kernel for these sizes: square heads whose states are moved 16 bytes at a time have one for one token a
// row of a plain step, and one for rows of few tokens. `states`: what is read or written, whichever is given; `more`:
// speculation, see PoolSlots.
inline void launch_recurrent(const char* op, const RecurrentSizes& s, Device device, const View& states,
                             bool state_v_first, bool more, FusedRecurrentArgs a) {
  const DType S = states.defined() ? states.dtype : DType::fp32;
  const bool aligned = (s.K == 64 || s.K == 128) && s.V % 16 == 0 && S != DType::fp8 && states_aligned(states);
  const bool square = aligned && s.K == s.V && !runs_cpu_twins(device);
  if (square && s.T == 1 && !s.packed && !more) {
    launch_step(op, s, device, S, state_v_first, a);
    return;
  }
  if (square && short_rows(s, a)) {
    const auto kernel = pick<kernels::fused_recurrent_verify>(
        op, device, {.S = S, .VFIRST = state_v_first, .BK = static_cast<int>(s.K)});
    // Packed, one more "row" has the tokens that belong to none.
    kernel.launch((s.N + s.packed) * s.HV * (s.V / kernel.tiles.BV),
                  {.rule = a, .ahead = fetch_distance(device, s.K * kernel.tiles.BV * element_size(S))});
    return;
  }
  const int BK = aligned ? static_cast<int>(s.K) : s.K <= 128 ? 128 : 256;
  const auto kernel = pick<kernels::fused_recurrent>(
      op, device, {.S = aligned ? S : DType::fp32, .VFIRST = state_v_first, .BK = BK, .ALIGNED = aligned});
  a.state_dtype = static_cast<int32_t>(S);
  const int64_t head_blocks = ceil_div(s.V, kernel.tiles.BV * kernel.tiles.WARPS);
  a.head_blocks = divisor(head_blocks), a.n_head_blocks = static_cast<int32_t>(head_blocks);
  // Packed, one more "sequence" has the tokens that belong to none.
  kernel.launch((s.N + s.packed) * s.HV * head_blocks, a);
}

// Steps on a pool.
struct RecurrentUpdate {
  const char* op;
  RecurrentSizes s;
  View q, k, v;
  RecurrentGates gates;
  View pool, has_state = {}, cu_seqlens;
  PoolSlots slots;
  bool update_state, l2norm, v_first;
  std::optional<double> scale;
  int64_t min_slot;

  // All but the tokens.
  FusedRecurrentArgs args(DType activations) const {
    FusedRecurrentArgs a = recurrent_args(s, activations, scale, l2norm);
    a.cu_seqlens = index_arg(cu_seqlens);
    a.h0 = pool.data, a.h0_stride = pool.stride(0);
    a.ht = update_state ? pool.data : nullptr, a.ht_stride = pool.stride(0);
    a.slots = slots.second.limit(pool.size(0)), a.min_slot = std::max<int64_t>(min_slot, 0);
    slots.fill(a);
    a.has_state = static_cast<const uint8_t*>(has_state.data), a.has_state_stride = has_state.stride(0);
    return a;
  }

  // o [B, T, HV, V], contiguous rows [HV, V] evenly apart.
  void launch(const View& o) const {
    FusedRecurrentArgs a = args(q.dtype);
    a.q = rows_arg(q, s.packed), a.k = rows_arg(k, s.packed), a.v = rows_arg(v, s.packed);
    a.o = o.data, a.o_stride = o.row_stride(2);
    gates.fill(a, s);
    launch_recurrent(op, s, q.device, pool, v_first, slots.more(), a);
  }
};

}  // namespace gdn
