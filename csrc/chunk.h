// What the composites of the chunk algorithm share: when chunks apply, the workspace, and the two launches.
#pragma once

#include "recurrent.h"
#include "runtime/gate.h"
#include "runtime/index.h"

namespace gdn {

// Where the states of a call are read and stored, and what a pool adds.
struct ChunkStates {
  View h0 = {};                                  // [N or slots, HV, S0, S1]; not defined: zeros
  View ht = {};                                  // of the same shape; not defined: not stored
  View slots = {}, has_state = {};               // on a pool: [N]
  View checkpoints = {}, checkpoint_slots = {};  // [slots, HV, S0, S1], [N, M]
  View prefix = {};                              // [N]
  View scales = {}, seed = {};                   // of a pool: see check_rounding
  SecondPool second = {};
  int64_t min_slot = 0, every = 64;
  bool v_first = false;

  void check_checkpoints(Checks& checks, const RecurrentSizes& s, const char* name = "checkpoints") const {
    if (prefix.defined()) checks.index("prefix_lens", prefix, {s.N});
    if (!checkpoints.defined()) {
      checks.that(!checkpoint_slots.defined(), name, "a tensor with checkpoint_indices", "None");
      return;
    }
    checks
        .pool(name, checkpoints, {-1, s.HV, v_first ? s.V : s.K, v_first ? s.K : s.V},
              {DType::fp32, DType::bf16, DType::fp16})
        .index("checkpoint_indices", checkpoint_slots, {s.N, -1})
        .that(every >= 64 && every % 64 == 0, "checkpoint_every", "a multiple of 64", every);
  }
};

// A call of the chunk rule: by chunks, or token by token where those do not serve.
struct ChunkRule {
  const char* op;
  RecurrentSizes s;
  View q, k, v, g, beta, cu_seqlens;
  std::optional<double> scale;
  bool l2norm;
  ChunkStates states;

  // Chunks serve head sizes of 64 and 128 and 16-byte rows; the token loop serves all else, and the CPU.
  static bool chunks_serve(const RecurrentSizes& s, Device device) {
    return !runs_cpu_twins(device) && (s.K == 64 || s.K == 128) && s.V % 64 == 0;
  }
  bool by_chunks() const { return chunks_serve(s, q.device) && aligned(q, k, v); }

  // What chunks need between their two launches: T', P' and the scales of every chunk.
  struct Between {
    static constexpr int64_t BT = 64;
    int64_t slots, tile, bytes;
    Between(const RecurrentSizes& s, DType dtype, bool prefix)
        : slots(chunk_slots(s.N, s.T, BT, s.packed, prefix ? 2 : 1)),
          tile(BT * BT * element_size(dtype) * s.HV * slots),
          bytes(2 * tile + slots * s.HV * 4 * BT * element_size(DType::fp32)) {}
  };

  // o [.., HV, V] of all tokens, contiguous; `between` has Between's bytes.
  void launch_chunks(const View& o, void* between) const;
  // On a pool, token by token.
  void launch_tokens(const View& o) const;
};

inline void ChunkRule::launch_chunks(const View& o, void* memory) const {
  const bool pool = states.slots.defined();

  // pick: wide state tiles where narrow ones would not run all at once (H200, 1 x 8192, HV = 48: rec 0.41 -> 0.26 ms)
  const int BK = static_cast<int>(s.K);
  const int BV = s.N * s.HV * ceil_div(s.V, 32) > multiprocessors(q.device) ? 64 : 32;
  const auto prep = pick<kernels::chunk_prep>(op, q.device, {.T = q.dtype, .BK = BK});
  const auto rec = pick<kernels::chunk_rec>(op, q.device, {.T = q.dtype, .BK = BK, .BV = BV, .POOL = pool});

  // launch
  const Between between(s, q.dtype, states.prefix.defined());
  const int64_t slots = between.slots;
  const Index prefix(states.prefix);
  auto shared = [&, cu = Index(cu_seqlens), t = static_cast<char*>(memory)](auto a) {
    a.q = q.data, a.k = k.data, a.o = o.data, a.t = t, a.p = t + between.tile, a.d = t + 2 * between.tile;
    a.stride_qb = q.stride(0), a.stride_qt = q.stride(1), a.stride_qh = q.stride(2);
    a.stride_kb = k.stride(0), a.stride_kt = k.stride(1), a.stride_kh = k.stride(2);
    a.cu_seqlens = cu.data, a.cu_stride = cu.stride, a.cu_words = cu.words, a.T_len = s.T;
    a.prefix = prefix.data, a.prefix_stride = prefix.stride, a.prefix_words = prefix.words;
    a.H = static_cast<int32_t>(s.H), a.HV = static_cast<int32_t>(s.HV);
    a.V = static_cast<int32_t>(s.V);
    return a;
  };

  // the value heads of a key head share its products once there are programs enough to fill the GPU without
  const int64_t heads = slots * s.H >= 1024 ? s.HV / s.H : 1;
  const Gate gate(g), beta_gate(beta);
  auto a = shared(kernels::chunk_prep::Args{});
  a.g = gate.data, a.g_kind = gate.kind;
  a.stride_gb = gate.stride_b, a.stride_gt = gate.stride_t, a.stride_gh = gate.stride_h;
  a.beta = beta_gate.data, a.beta_kind = beta_gate.kind;
  a.stride_bb = beta_gate.stride_b, a.stride_bt = beta_gate.stride_t, a.stride_bh = beta_gate.stride_h;
  a.N = s.N, a.heads = static_cast<int32_t>(heads), a.l2norm = l2norm;
  a.scale = static_cast<float>(scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
  prep.launch(slots * (s.HV / heads), a);

  auto b = shared(kernels::chunk_rec::Args{});
  b.v = v.data, b.stride_vb = v.stride(0), b.stride_vt = v.stride(1), b.stride_vh = v.stride(2);
  b.stride_ob = s.T * s.HV * s.V, b.stride_ot = s.HV * s.V, b.stride_oh = s.V;
  b.h0 = states.h0.data, b.h0_kind = state_kind(states.h0);
  b.stride_sn = states.h0.stride(0), b.stride_sh = states.h0.stride(1), b.stride_sr = states.h0.stride(2);
  b.ht = states.ht.data, b.ht_kind = state_kind(states.ht), b.stride_hn = states.ht.stride(0);
  b.v_first = states.v_first;
  if (pool) {
    const Index at(states.slots), to(states.checkpoint_slots);
    b.slots = at.data, b.slots_stride = at.stride, b.slots_words = at.words;
    const Index also(states.second.slots);
    b.also = also.data, b.also_stride = also.stride, b.also_words = also.words, b.n_also = states.second.count;
    b.scales = states.scales.data, b.scales_stride = states.scales.stride(0);
    b.seed = states.seed.data, b.seed_given = states.seed.defined();
    b.n_slots = states.second.limit(states.h0.size(0)), b.min_slot = std::max<int64_t>(states.min_slot, 0);
    b.has_state = states.has_state.data, b.has_state_stride = states.has_state.stride(0);
    b.has_state_given = states.has_state.defined();
    b.checkpoints = states.checkpoints.data, b.checkpoint_kind = state_kind(states.checkpoints);
    b.checkpoint_stride = states.checkpoints.stride(0), b.n_checkpoints = states.checkpoints.size(0);
    b.checkpoint_slots = to.data, b.checkpoint_slots_words = to.words;
    b.checkpoint_slots_stride_n = to.stride, b.checkpoint_slots_stride_m = states.checkpoint_slots.stride(1) * to.words;
    b.checkpoint_columns = static_cast<int32_t>(states.checkpoint_slots.size(1)), b.every = states.every;
  }
  rec.launch(s.N * s.HV * ceil_div(s.V, BV), b);
}

inline void ChunkRule::launch_tokens(const View& o) const {
  const View &pool = states.h0, &to = states.checkpoint_slots;
  FusedRecurrentArgs a = recurrent_args(s, q.dtype, scale, l2norm);
  a.q = rows_arg(q, s.packed), a.k = rows_arg(k, s.packed), a.v = rows_arg(v, s.packed);
  a.cu_seqlens = index_arg(cu_seqlens), a.o = o.data;
  a.g = gate_arg(g, s.packed, s.ratio()), a.beta = gate_arg(beta, s.packed, s.ratio());
  a.h0 = pool.data, a.h0_stride = pool.stride(0);
  a.ht = states.ht.data, a.ht_stride = pool.stride(0);
  a.spec.scales = static_cast<const float*>(states.scales.data), a.spec.scales_stride = states.scales.stride(0);
  a.spec.seed = static_cast<const int64_t*>(states.seed.data);
  a.spec.also = index_arg(states.second.slots), a.spec.n_also = states.second.count;
  a.slots = states.second.limit(pool.size(0)), a.min_slot = std::max<int64_t>(states.min_slot, 0);
  a.read = index_arg(states.slots);
  a.has_state = static_cast<const uint8_t*>(states.has_state.data), a.has_state_stride = states.has_state.stride(0);
  a.spec.checkpoints = {.data = states.checkpoints.data,
                        .prefix = index_arg(states.prefix),
                        .slots = index_arg(to),
                        .slots_step = to.stride(1) * (to.dtype == DType::i64 ? 2 : 1),
                        .columns = to.size(1),
                        .every = states.every,
                        .stride = states.checkpoints.stride(0),
                        .n_slots = states.checkpoints.size(0),
                        .dtype = static_cast<int32_t>(states.checkpoints.dtype)};
  const bool more = states.checkpoints.defined() || states.seed.defined() || states.second.slots.defined();
  launch_recurrent(op, s, q.device, pool, states.v_first, more, a);
}

}  // namespace gdn
