#include "gated_rmsnorm.h"
#include "gen/ops.h"

namespace gdn {

std::tuple<Tensor, Tensor> gated_rmsnorm_fp8(const Tensor& x_, const Tensor& weight_, const OptTensor& z_, double eps,
                                             int64_t activation, bool norm_before_gate, int64_t group_size,
                                             bool hf_rounding, int64_t quant_group) {
  // shapes
  const GatedNorm norm(x_, weight_, z_, eps, activation, norm_before_gate, group_size, hf_rounding);
  const int64_t columns = quant_group > 0 ? quant_group : norm.D();

  // checks
  Checks checks("gated_rmsnorm_fp8");
  norm.check(checks);
  checks.that(quant_group >= 0 && (columns < 1 || norm.D() % columns == 0), "quant_group",
              "0 or a divisor of the columns that are normalised together", quant_group);
  checks.done();

  // launch
  Tensor y = empty_like(norm.x, DType::fp8);
  Tensor scales = empty_like(norm.x, DType::fp32, norm.x.dim - 1, norm.width() / columns);
  norm.launch_fp8("gated_rmsnorm_fp8", y, {}, View(scales), columns);
  return {std::move(y), std::move(scales)};
}

}  // namespace gdn
