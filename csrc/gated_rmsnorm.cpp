#include "gated_rmsnorm.h"

#include "gen/ops.h"

namespace gdn {

Tensor gated_rmsnorm(const Tensor& x_, const Tensor& weight_, const OptTensor& z_, double eps, int64_t activation,
                     bool norm_before_gate, int64_t group_size, bool hf_rounding, const OptTensor& out_scale_,
                     const OptTensor& out) {
  // shapes
  const GatedNorm norm(x_, weight_, z_, eps, activation, norm_before_gate, group_size, hf_rounding);
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

  // pick
  if (out_scale.defined()) {
    Tensor y = result_like(out, x, to);
    norm.launch_fp8("gated_rmsnorm", y, out_scale, {}, norm.D());
    return y;
  }
  const int64_t D = norm.D(), G = norm.G(), R = norm.R();
  const bool tile = (D == 64 || D == 128 || D == 256) && x.dtype != DType::fp32 && norm.on_16_bytes();
  const auto kernel = pick<kernels::gated_rmsnorm>(
      "gated_rmsnorm", x.device, {.T = x.dtype, .BD = tile ? static_cast<int>(D) : 256, .ALIGNED = tile});

  // launch
  Tensor y = result_like(out, x, to);
  kernel.launch(G * ceil_div(R, kernel.tiles.BR),
                {.x = x.data,
                 .weight = norm.weight.data,
                 .z = norm.gate().data,
                 .y = View(y).data,
                 .R = R,
                 .n1 = norm.n[1],
                 .n2 = norm.n[2],
                 .x_stride_0 = norm.x_strides[0],
                 .x_stride_1 = norm.x_strides[1],
                 .x_stride_2 = norm.x_strides[2],
                 .z_stride_0 = norm.z_strides[0],
                 .z_stride_1 = norm.z_strides[1],
                 .z_stride_2 = norm.z_strides[2],
                 .G = static_cast<int32_t>(G),
                 .D = static_cast<int32_t>(D),
                 .activation = norm.z.defined() ? static_cast<int32_t>(activation) : -1,
                 .gate_first = !norm_before_gate,
                 .hf_rounding = hf_rounding,
                 .weight_kind = norm.weight.dtype == DType::fp32 ? 1 : 2,
                 .eps = static_cast<float>(eps)});
  return y;
}

}  // namespace gdn
