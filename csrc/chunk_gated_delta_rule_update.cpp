#include "chunk.h"
#include "gen/ops.h"

namespace gdn {

Tensor chunk_gated_delta_rule_update(const Tensor& q_, const Tensor& k_, const Tensor& v_, const OptTensor& g_,
                                     const OptTensor& beta_, const Tensor& ssm_pool_, const Tensor& ssm_indices_,
                                     const OptTensor& has_initial_state_, const OptTensor& cu_seqlens_,
                                     std::optional<double> scale, bool use_qk_l2norm_in_kernel, bool state_v_first,
                                     bool write_state, const OptTensor& checkpoints_, int64_t checkpoint_every,
                                     const OptTensor& checkpoint_indices_, const OptTensor& prefix_lens_,
                                     int64_t min_slot, const OptTensor& pool_scale, const OptTensor& rounding_seed,
                                     const OptTensor& out) {
  constexpr const char* op = "chunk_gated_delta_rule_update";

  // shapes
  const View q(q_), k(k_), v(v_), g(g_), beta(beta_), cu_seqlens(cu_seqlens_);
  const View pool(ssm_pool_);
  const RecurrentSizes s(q, v, cu_seqlens);
  const ChunkStates states{.h0 = pool,
                           .ht = write_state ? pool : View(),
                           .slots = View(ssm_indices_),
                           .has_state = View(has_initial_state_),
                           .checkpoints = View(checkpoints_),
                           .checkpoint_slots = View(checkpoint_indices_),
                           .prefix = View(prefix_lens_),
                           .scales = View(pool_scale),
                           .seed = View(rounding_seed),
                           .min_slot = min_slot,
                           .every = checkpoint_every,
                           .v_first = state_v_first};

  // checks
  Checks checks(op);
  check_tokens(checks, s, q, k, v, cu_seqlens)
      .that(runs_cpu_twins(q.device) || q.dtype != DType::fp32, "q",
            "bf16 or fp16 (fp32: fused_recurrent_gated_delta_rule_update)", q)
      .gate("g", g, {s.B, s.T, s.HV}, q.dtype)
      .gate("beta", beta, {s.B, s.T, s.HV}, q.dtype)
      .pool("ssm_pool", pool, {-1, s.HV, state_v_first ? s.V : s.K, state_v_first ? s.K : s.V},
            {DType::fp32, DType::bf16, DType::fp16, DType::fp8})
      .index("ssm_indices", states.slots, {s.N});
  if (states.has_state.defined())
    checks.shape("has_initial_state", states.has_state, {s.N})
        .dtype("has_initial_state", states.has_state, {DType::b8})
        .device("has_initial_state", states.has_state);
  check_rounding(checks, s, pool, states.scales, states.seed);
  states.check_checkpoints(checks, s);
  checks.out("out", View(out), {s.B, s.T, s.HV, s.V}, q.dtype).done();

  // launch
  const ChunkRule rule{op, s, q, k, v, g, beta, cu_seqlens, scale, use_qk_l2norm_in_kernel, states};
  Tensor o = result(out, {s.B, s.T, s.HV, s.V}, q.dtype, q.device);
  if (!rule.by_chunks()) {
    rule.launch_tokens(View(o));
    return o;
  }
  const Tensor between = empty({ChunkRule::Between(s, q.dtype, states.prefix.defined()).bytes}, DType::u8, q.device);
  rule.launch_chunks(View(o), View(between).data);
  return o;
}

}  // namespace gdn
