#include "gated_rmsnorm.h"
#include "gen/ops.h"

namespace gdn {

std::tuple<Tensor, Tensor> gated_rmsnorm_fp8(const Tensor& x_, const Tensor& weight_, const OptTensor& z_, double eps,
                                             int64_t activation, bool norm_before_gate, int64_t group_size,
                                             bool hf_rounding, int64_t quant_group, const OptTensor& out_y,
                                             const OptTensor& out_scales) {
  // shapes
  const GatedNorm norm(View(x_), View(weight_), View(z_), eps, activation, norm_before_gate, group_size, hf_rounding);
  const int64_t columns = quant_group > 0 ? quant_group : norm.D();
  View shape = norm.x;  // of the scales
  int64_t sizes[4] = {};
  std::copy_n(norm.x.sizes, std::clamp<int64_t>(norm.x.dim, 0, 4), sizes);
  if (norm.x.dim >= 1 && norm.x.dim <= 4 && columns >= 1) sizes[norm.x.dim - 1] = norm.width() / columns;
  shape.sizes = sizes;

  // checks
  Checks checks("gated_rmsnorm_fp8");
  norm.check(checks);
  checks.that(quant_group >= 0 && (columns < 1 || norm.D() % columns == 0), "quant_group",
              "0 or a divisor of the columns that are normalised together", quant_group);
  checks.out_like("out_y", View(out_y), norm.x, DType::fp8);
  if (norm.x.dim <= 4) checks.out_like("out_scales", View(out_scales), shape, DType::fp32);
  checks.done();

  // launch
  Tensor y = result_like(out_y, norm.x, DType::fp8), scales = result_like(out_scales, shape, DType::fp32);
  norm.launch("gated_rmsnorm_fp8", View(y), {}, View(scales), columns);
  return {std::move(y), std::move(scales)};
}

}  // namespace gdn
