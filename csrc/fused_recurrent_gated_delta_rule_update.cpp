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
  const View q(q_), k(k_), v(v_), g(g_), beta(beta_), A_log(A_log_), a(a_), dt_bias(dt_bias_), b(b_);
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
  const bool raw = A_log.defined() || a.defined() || dt_bias.defined() || b.defined();

  // checks
  Checks checks(op);
  check_tokens(checks, s, q, k, v, cu_seqlens);
  if (raw) {
    checks.that(A_log.defined(), "A_log", "a tensor with the other raw gates (A_log, a, dt_bias, b)", "None")
        .that(a.defined(), "a", "a tensor with the other raw gates (A_log, a, dt_bias, b)", "None")
        .that(dt_bias.defined(), "dt_bias", "a tensor with the other raw gates (A_log, a, dt_bias, b)", "None")
        .that(b.defined(), "b", "a tensor with the other raw gates (A_log, a, dt_bias, b)", "None")
        .that(!g.defined(), "g", "None with raw gates (A_log, a, dt_bias, b)", "a tensor")
        .that(!beta.defined(), "beta", "None with raw gates (A_log, a, dt_bias, b)", "a tensor");
  } else {
    checks.that(g.defined(), "g", "a tensor, or raw gates (A_log, a, dt_bias, b)", "None");
  }
  for (const auto& [name, t] : {std::pair("g", &g), std::pair("beta", &beta), std::pair("a", &a), std::pair("b", &b)})
    if (t->dim == 4)
      checks.gate(name, *t, {s.B, s.T, s.H, s.ratio()}, q.dtype);
    else
      checks.gate(name, *t, {s.B, s.T, s.HV}, q.dtype);
  checks.gate("A_log", A_log, {s.HV}, q.dtype)
      .gate("dt_bias", dt_bias, {s.HV}, q.dtype)
      .pool("ssm_pool", pool, {-1, s.HV, state_v_first ? s.V : s.K, state_v_first ? s.K : s.V},
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
                  .g = g,
                  .beta = beta,
                  .A_log = A_log,
                  .a = a,
                  .dt_bias = dt_bias,
                  .b = b,
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
