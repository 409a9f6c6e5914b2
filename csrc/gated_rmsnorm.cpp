#include "gated_rmsnorm.h"

#include "gen/ops.h"

namespace gdn {

Tensor gated_rmsnorm(const Tensor& x_, const Tensor& weight_, const OptTensor& z_, double eps, int64_t activation,
                     bool norm_before_gate, int64_t group_size, bool hf_rounding, const OptTensor& out_scale_,
                     const OptTensor& out) {
  // shapes
  const GatedNorm norm(View(x_), View(weight_), View(z_), eps, activation, norm_before_gate, group_size, hf_rounding);
  const View &x = norm.x, out_scale(out_scale_);

  // checks
  Checks checks("gated_rmsnorm");
  norm.check(checks);
  if (out_scale.defined())
    checks.that(out_scale.numel() == 1 && out_scale.dim <= 1, "out_scale", "one number", out_scale)
        .dtype("out_scale", out_scale, {DType::fp32})
        .device("out_scale", out_scale)
        .no_grad("out_scale", out_scale);
  const DType to = out_scale.defined() ? DType::fp8 : x.dtype;
  checks.out_like("out", View(out), x, to).done();

  // launch
  Tensor y = result_like(out, x, to);
  norm.launch("gated_rmsnorm", View(y), out_scale);
  return y;
}

}  // namespace gdn
