#include "gen/ops.h"
#include "recurrent.h"

namespace gdn {

Tensor fused_recurrent_gated_delta_rule_update(
    const Tensor& q_, const Tensor& k_, const Tensor& v_, const OptTensor& g_, const OptTensor& beta_,
    const OptTensor& A_log_, const OptTensor& a_, const OptTensor& dt_bias_, const OptTensor& b_,
    const Tensor& ssm_pool_, const Tensor& ssm_indices_, const OptTensor& ssm_write_indices_,
    const OptTensor& num_accepted_tokens_, const OptTensor& cu_seqlens_, const OptTensor& intermediate_states_,
    const OptTensor& intermediate_indices_, const OptTensor& parents_, const OptTensor& has_initial_state_,
    bool update_state, std::optional<double> scale, bool use_qk_l2norm_in_kernel, bool state_v_first, int64_t min_slot,
    const OptTensor& pool_scale_, const OptTensor& rounding_seed_, const OptTensor& out) {
  constexpr const char* op = "fused_recurrent_gated_delta_rule_update";

  // shapes
  const View q(q_), k(k_), v(v_);
  const RecurrentGates gates{View(g_), View(beta_), View(A_log_), View(a_), View(dt_bias_), View(b_)};
  const View pool(ssm_pool_), has_state(has_initial_state_), cu_seqlens(cu_seqlens_);
  const PoolSlots slots{.read = View(ssm_indices_),
                        .write = View(ssm_write_indices_),
                        .accepted = View(num_accepted_tokens_),
                        .steps = View(intermediate_states_),
                        .steps_slots = View(intermediate_indices_),
                        .parents = View(parents_),
                        .scales = View(pool_scale_),
                        .seed = View(rounding_seed_)};
  const RecurrentSizes s(q, v, cu_seqlens);

  // checks
  Checks checks(op);
  check_tokens(checks, s, q, k, v, cu_seqlens);
  gates.check(checks, s, q.dtype);
  checks.pool("ssm_pool", pool, {-1, s.HV, state_v_first ? s.V : s.K, state_v_first ? s.K : s.V},
              {DType::fp32, DType::bf16, DType::fp16, DType::fp8});
  slots.check(checks, s, pool, state_v_first);
  if (has_state.defined())
    checks.shape("has_initial_state", has_state, {s.N})
        .dtype("has_initial_state", has_state, {DType::b8})
        .device("has_initial_state", has_state);
  checks.out("out", View(out), {s.B, s.T, s.HV, s.V}, q.dtype, 2).done();

  // launch
  Tensor o = result(out, {s.B, s.T, s.HV, s.V}, q.dtype, q.device);
  RecurrentUpdate{.op = op,
                  .s = s,
                  .q = q,
                  .k = k,
                  .v = v,
                  .gates = gates,
                  .pool = pool,
                  .has_state = has_state,
                  .cu_seqlens = cu_seqlens,
                  .slots = slots,
                  .update_state = update_state,
                  .l2norm = use_qk_l2norm_in_kernel,
                  .v_first = state_v_first,
                  .scale = scale,
                  .min_slot = min_slot}
      .launch(View(o));
  return o;
}

}  // namespace gdn
