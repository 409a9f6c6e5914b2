#include "gen/ops.h"
#include "recurrent.h"

namespace gdn {

std::tuple<Tensor, Tensor> fused_recurrent_gated_delta_rule(const Tensor& q_, const Tensor& k_, const Tensor& v_,
                                                            const OptTensor& g_, const OptTensor& beta_,
                                                            std::optional<double> scale,
                                                            const OptTensor& initial_state_, bool output_final_state,
                                                            const OptTensor& cu_seqlens_, bool use_qk_l2norm_in_kernel,
                                                            bool state_v_first) {
  constexpr const char* op = "fused_recurrent_gated_delta_rule";

  // shapes
  const View q(q_), k(k_), v(v_), g(g_), beta(beta_), h0(initial_state_), cu_seqlens(cu_seqlens_);
  const RecurrentSizes s(q, v, cu_seqlens);
  const int64_t S0 = state_v_first ? s.V : s.K, S1 = state_v_first ? s.K : s.V;

  // checks
  Checks checks(op);
  check_tokens(checks, s, q, k, v, cu_seqlens)
      .gate("g", g, {s.B, s.T, s.HV}, q.dtype)
      .gate("beta", beta, {s.B, s.T, s.HV}, q.dtype);
  if (h0.defined()) checks.pool("initial_state", h0, {s.N, s.HV, S0, S1}, {DType::fp32, DType::bf16, DType::fp16});
  checks.done();

  // launch
  Tensor o = empty({s.B, s.T, s.HV, s.V}, q.dtype, q.device);
  Tensor ht =
      output_final_state ? empty({s.N, s.HV, S0, S1}, DType::fp32, q.device) : empty({0}, DType::fp32, q.device);
  FusedRecurrentArgs a = recurrent_args(s, q.dtype, scale, use_qk_l2norm_in_kernel);
  a.q = rows_arg(q, s.packed), a.k = rows_arg(k, s.packed), a.v = rows_arg(v, s.packed);
  a.cu_seqlens = index_arg(cu_seqlens), a.o = View(o).data;
  a.g = gate_arg(g, s.packed, s.ratio()), a.beta = gate_arg(beta, s.packed, s.ratio());
  a.h0 = h0.data, a.h0_stride = h0.stride(0);
  a.ht = output_final_state ? View(ht).data : nullptr, a.ht_stride = s.HV * s.K * s.V, a.ht_fp32 = true;
  launch_recurrent(op, s, q.device, h0, state_v_first, false, a);
  return {std::move(o), std::move(ht)};
}

}  // namespace gdn
