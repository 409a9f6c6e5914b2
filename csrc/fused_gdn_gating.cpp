#include "gen/kernels.h"
#include "gen/ops.h"

namespace gdn {

std::tuple<Tensor, Tensor> fused_gdn_gating(const Tensor& A_log_, const Tensor& a_, const Tensor& b_,
                                            const Tensor& dt_bias_, double softplus_beta, double softplus_threshold,
                                            const OptTensor& out_g, const OptTensor& out_beta) {
  // shapes
  const View A_log(A_log_), a(a_), b(b_), dt_bias(dt_bias_);
  // Heads in groups, [..., H, r], where they are not all of the last dimension.
  const bool grouped =
      a.dim >= 3 && A_log.dim == 1 && a.size(-1) != A_log.size(0) && a.size(-2) * a.size(-1) == A_log.size(0);
  const int64_t r = a.size(-1), HV = grouped ? a.size(-2) * r : r, last = grouped ? -2 : -1;
  DType half = DType::bf16;  // the one 16-bit dtype among the inputs
  for (const View* t : {&dt_bias, &A_log, &b, &a})
    if (t->dtype == DType::bf16 || t->dtype == DType::fp16) half = t->dtype;
  auto kind = [](const View& t) { return t.dtype == DType::fp32 ? 1 : 2; };

  // checks
  Checks("fused_gdn_gating")
      .that(a.dim >= 1 && a.dim <= 4, "a", "1 to 4 dimensions [..., HV] or [..., H, HV / H]", a)
      .that(a.dim < 1 || (HV >= 1 && HV <= INT32_MAX), "a", "at least one head", a)
      .same_shape("b", b, "a", a)
      .shape("A_log", A_log, {HV})
      .shape("dt_bias", dt_bias, {HV})
      .dtype("A_log", A_log, {DType::fp32, half})
      .dtype("a", a, {DType::fp32, half})
      .dtype("b", b, {DType::fp32, half})
      .dtype("dt_bias", dt_bias, {DType::fp32, half})
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

  // pick
  const auto kernel = pick<kernels::fused_gdn_gating>("fused_gdn_gating", a.device, {.T = half});

  // launch
  Tensor g = result_like(out_g, a, DType::fp32), beta = result_like(out_beta, a, DType::fp32);
  const int64_t R = a.numel() / HV;
  kernel.launch(ceil_div(R, kernel.tiles.BR) * ceil_div(HV, kernel.tiles.BH),
                {.A_log = A_log.data,
                 .a = a.data,
                 .b = b.data,
                 .dt_bias = dt_bias.data,
                 .g = View(g).data,
                 .beta = View(beta).data,
                 .R = R,
                 .n1 = a.dim >= 2 - last ? a.size(last - 2) : 1,
                 .n2 = a.dim >= 1 - last ? a.size(last - 1) : 1,
                 .A_stride = A_log.stride(0),
                 .dt_stride = dt_bias.stride(0),
                 .a_stride_0 = a.stride(last - 3),
                 .a_stride_1 = a.stride(last - 2),
                 .a_stride_2 = a.stride(last - 1),
                 .a_stride_g = grouped ? a.stride(-2) : 0,
                 .a_stride_h = a.stride(-1),
                 .b_stride_0 = b.stride(last - 3),
                 .b_stride_1 = b.stride(last - 2),
                 .b_stride_2 = b.stride(last - 1),
                 .b_stride_g = grouped ? b.stride(-2) : 0,
                 .b_stride_h = b.stride(-1),
                 .HV = static_cast<int32_t>(HV),
                 .r = static_cast<int32_t>(r),
                 .A_kind = kind(A_log),
                 .a_kind = kind(a),
                 .b_kind = kind(b),
                 .dt_kind = kind(dt_bias),
                 .softplus_beta = static_cast<float>(softplus_beta),
                 .softplus_threshold = static_cast<float>(softplus_threshold)});
  return {std::move(g), std::move(beta)};
}

}  // namespace gdn
