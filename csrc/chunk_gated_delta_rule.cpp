#include "chunk.h"
#include "gen/ops.h"

namespace gdn {

std::tuple<Tensor, Tensor> chunk_gated_delta_rule(const Tensor& q_, const Tensor& k_, const Tensor& v_,
                                                  const OptTensor& g_, const OptTensor& beta_,
                                                  std::optional<double> scale, const OptTensor& initial_state_,
                                                  bool output_final_state, const OptTensor& cu_seqlens_,
                                                  bool use_qk_l2norm_in_kernel, bool state_v_first) {
  constexpr const char* op = "chunk_gated_delta_rule";

  // shapes
  const View q(q_), k(k_), v(v_), g(g_), beta(beta_), h0(initial_state_), cu_seqlens(cu_seqlens_);
  const RecurrentSizes s(q, v, cu_seqlens);
  const int64_t S0 = state_v_first ? s.V : s.K, S1 = state_v_first ? s.K : s.V;

  // checks
  Checks checks(op);
  check_tokens(checks, s, q, k, v, cu_seqlens)
      .that(runs_cpu_twins(q.device) || q.dtype != DType::fp32, "q",
            "bf16 or fp16 (fp32: fused_recurrent_gated_delta_rule)", q)
      .gate("g", g, {s.B, s.T, s.HV}, q.dtype)
      .gate("beta", beta, {s.B, s.T, s.HV}, q.dtype);
  if (h0.defined()) checks.pool("initial_state", h0, {s.N, s.HV, S0, S1}, {DType::fp32, DType::bf16, DType::fp16});
  checks.done();

  // pick
  ChunkRule rule{op, s, q, k, v, g, beta, cu_seqlens, scale, use_qk_l2norm_in_kernel, {}};
  if (!rule.by_chunks())
    return fused_recurrent_gated_delta_rule(q_, k_, v_, g_, beta_, scale, initial_state_, output_final_state,
                                            cu_seqlens_, use_qk_l2norm_in_kernel, state_v_first);

  // launch
  Tensor ht =
      output_final_state ? empty({s.N, s.HV, S0, S1}, DType::fp32, q.device) : empty({0}, DType::fp32, q.device);
  rule.states = {.h0 = h0, .ht = output_final_state ? View(ht) : View(), .v_first = state_v_first};
  Tensor o = empty({s.B, s.T, s.HV, s.V}, q.dtype, q.device);
  const Tensor between = empty({ChunkRule::Between(s, q.dtype, false).bytes}, DType::u8, q.device);
  rule.launch_chunks(View(o), View(between).data);
  return {std::move(o), std::move(ht)};
}

}  // namespace gdn
