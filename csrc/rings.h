// What the host functions of ring decode share: the rings' checks and the launch of their kernel.
#pragma once

#include "recurrent.h"

namespace gdn {

// The last tokens of every slot, which its frozen state lacks.
struct Rings {
  View k, u, g;
  int64_t slots;

  int64_t R() const { return k.size(1); }

  void check(Checks& checks, const RecurrentSizes& s) const {
    checks.pool("ring_k", k, {slots, -1, s.H, s.K}, {DType::fp32})
        .pool("ring_u", u, {slots, R(), s.HV, s.V}, {DType::fp32})
        .pool("ring_g", g, {slots, R(), s.HV}, {DType::fp32})
        .that(R() >= 1 && R() <= kMostEntries, "ring_k", "1 to 64 entries a slot", R());
  }

  void fill(FusedRecurrentRingArgs& a) const {
    const auto ring = [](const View& t) { return RingArg{static_cast<float*>(t.data), t.stride(0)}; };
    a.ring_k = ring(k), a.ring_u = ring(u), a.ring_g = ring(g), a.R = static_cast<int32_t>(R()), a.slots = slots;
  }
};

inline Checks& check_frozen(Checks& checks, const RecurrentSizes& s, const View& pool, bool state_v_first) {
  return checks.pool("ssm_pool", pool, {-1, s.HV, state_v_first ? s.V : s.K, state_v_first ? s.K : s.V},
                     {DType::fp32, DType::bf16, DType::fp16});
}

// Square heads of 64 and 128 are moved 16 bytes at a time, and have a kernel of their own for rows of one token; others
// have one that takes any size.
inline Picked<kernels::fused_recurrent_ring> pick_ring(const char* op, const RecurrentSizes& s, const View& pool,
                                                       const Rings& rings, bool state_v_first) {
  const bool aligned = (s.K == 64 || s.K == 128) && s.K == s.V && states_aligned(pool) && states_aligned(rings.k) &&
                       states_aligned(rings.u);
  return pick<kernels::fused_recurrent_ring>(op, pool.device,
                                             {.S = aligned ? pool.dtype : DType::fp32,
                                              .VFIRST = state_v_first,
                                              .BK = aligned ? static_cast<int>(s.K) : 256,
                                              .NT = aligned && s.T == 1 && !s.packed ? 1 : 4});
}

// Sizes and states; tokens, or how many entries are folded, are the op's own.
inline FusedRecurrentRingArgs ring_args(const RecurrentSizes& s, const View& pool, const View& ssm_indices,
                                        int64_t min_slot, const Rings& rings) {
  FusedRecurrentRingArgs a{};
  a.pool = pool.data, a.pool_stride = pool.stride(0), a.state_dtype = static_cast<int32_t>(pool.dtype);
  a.read = index_arg(ssm_indices), a.min_slot = std::max<int64_t>(min_slot, 0);
  a.ratio = divisor(s.ratio()), a.group = static_cast<int32_t>(s.ratio());
  a.N = static_cast<int32_t>(s.N), a.T = static_cast<int32_t>(s.T);
  a.H = static_cast<int32_t>(s.H), a.HV = static_cast<int32_t>(s.HV);
  a.K = static_cast<int32_t>(s.K), a.V = static_cast<int32_t>(s.V);
  rings.fill(a);
  return a;
}

// A block has one slice of V of one value head of one row. Packed, one more "row" has the tokens that belong to none.
inline void launch_ring(const Picked<kernels::fused_recurrent_ring>& kernel, const RecurrentSizes& s,
                        FusedRecurrentRingArgs a) {
  const int64_t slices = ceil_div(s.V, kernel.tiles.BV);
  a.slices = divisor(slices), a.units = divisor(s.HV * slices), a.n_slices = static_cast<int32_t>(slices);
  const int64_t blocks = (s.N + s.packed) * s.HV * slices;
  // The keys of a row that is folded are replaced when all heads have read them: 8 blocks at most can wait for that.
  const int64_t group = s.ratio() * slices;
  a.clusters = a.entries.words == 0 && group > 1 && group <= 8 && compiled_arch(kernel.op, kernel.device) >= 90;
  kernel.launch(blocks, a, a.clusters ? static_cast<int>(group) : 1);
}

}  // namespace gdn
