#include "gating.h"
#include "gen/ops.h"

namespace gdn {

std::tuple<Tensor, Tensor> fused_gdn_gating(const Tensor& A_log_, const Tensor& a_, const Tensor& b_,
                                            const Tensor& dt_bias_, double softplus_beta, double softplus_threshold,
                                            const OptTensor& out_g, const OptTensor& out_beta) {
  // shapes
  const View A_log(A_log_), a(a_), b(b_), dt_bias(dt_bias_);
  const Gating gating{A_log, a, b, dt_bias, softplus_beta, softplus_threshold};
  const int64_t HV = gating.HV();

  // checks
  Checks("fused_gdn_gating")
      .that(a.dim >= 1 && a.dim <= 4, "a", "1 to 4 dimensions [..., HV] or [..., H, HV / H]", a)
      .that(a.dim < 1 || (HV >= 1 && HV <= INT32_MAX), "a", "at least one head", a)
      .same_shape("b", b, "a", a)
      .shape("A_log", A_log, {HV})
      .shape("dt_bias", dt_bias, {HV})
      .dtype("A_log", A_log, {DType::fp32, gating.half()})
      .dtype("a", a, {DType::fp32, gating.half()})
      .dtype("b", b, {DType::fp32, gating.half()})
      .dtype("dt_bias", dt_bias, {DType::fp32, gating.half()})
      .device("A_log", A_log)
      .device("a", a)
      .device("b", b)
      .device("dt_bias", dt_bias)
      .no_grad("A_log", A_log)
      .no_grad("a", a)
      .no_grad("b", b)
      .no_grad("dt_bias", dt_bias)
      .that(softplus_beta > 0, "softplus_beta", "a positive number", "another")
      .out_like("out_g", View(out_g), a, DType::fp32)
      .out_like("out_beta", View(out_beta), a, DType::fp32)
      .done();

  // launch
  Tensor g = result_like(out_g, a, DType::fp32), beta = result_like(out_beta, a, DType::fp32);
  gating.launch("fused_gdn_gating", View(g), View(beta));
  return {std::move(g), std::move(beta)};
}

}  // namespace gdn
