#include "gen/kernels.h"
#include "gen/ops.h"
#include "runtime/activation.h"
#include "runtime/index.h"

namespace gdn {

namespace {

// The leading three dimensions of x and z, those merged that are one dimension in both: [R] rows where they can be.
struct Rows {
  int64_t n[3] = {1, 1, 1}, x[3] = {0, 0, 0}, z[3] = {0, 0, 0};

  Rows(const View& x_view, const View& z_view) {
    int used = 0;
    for (int64_t d = 0; d + 1 < x_view.dim; ++d) {
      const int64_t size = x_view.sizes[d], x_stride = x_view.strides[d], z_stride = z_view.strides[d];
      if (size == 1) continue;
      const bool merge = used > 0 && x[used - 1] == size * x_stride && z[used - 1] == size * z_stride;
      const int i = merge ? used - 1 : used++;
      n[i] *= size, x[i] = x_stride, z[i] = z_stride;
    }
  }
};

}  // namespace

Tensor gated_rmsnorm(const Tensor& x_, const Tensor& weight_, const OptTensor& z_, double eps, int64_t activation,
                     bool norm_before_gate, int64_t group_size, bool hf_rounding) {
  // shapes
  const View x(x_), weight(weight_), z(z_);
  const int64_t width = x.size(-1);
  const int64_t D = group_size > 0 ? group_size : width;

  // checks
  Checks checks("gated_rmsnorm");
  checks.dtype("x", x, {DType::bf16, DType::fp16, DType::fp32})
      .device("x", x)
      .no_grad("x", x)
      .unit_stride("x", x)
      .that(x.dim >= 1 && x.dim <= 4, "x", "1 to 4 dimensions", x)
      .that(x.dim < 1 || (width >= 1 && width <= INT32_MAX), "x", "a last dimension of at least 1", x)
      .activation("weight", weight, {width}, {DType::fp32, x.dtype})
      .that(activation >= kNone && activation <= kSigmoid, "activation", "0 (none), 1 (silu) or 2 (sigmoid)",
            activation)
      .that(group_size >= 0 && (width < 1 || width % D == 0), "group_size", "0 or a divisor of x's last size",
            group_size);
  if (z.defined())
    checks.same_shape("z", z, "x", x).dtype("z", z, {x.dtype}).device("z", z).no_grad("z", z).unit_stride("z", z);
  checks.done();

  // pick
  const bool tile =
      (D == 64 || D == 128 || D == 256) && x.dtype != DType::fp32 && aligned(x, weight) && (!z.defined() || aligned(z));
  const auto kernel = pick<kernels::gated_rmsnorm>(
      "gated_rmsnorm", x.device, {.T = x.dtype, .BD = tile ? static_cast<int>(D) : 256, .ALIGNED = tile});

  // launch
  Tensor y = empty_like(x, x.dtype);
  const int64_t R = x.numel() / width, G = width / D;
  const View& gate = z.defined() ? z : x;
  const Rows rows(x, gate);
  kernel.launch(G * ceil_div(R, kernel.tiles.BR), {.x = x.data,
                                                   .weight = weight.data,
                                                   .z = gate.data,
                                                   .y = View(y).data,
                                                   .R = R,
                                                   .n1 = rows.n[1],
                                                   .n2 = rows.n[2],
                                                   .x_stride_0 = rows.x[0],
                                                   .x_stride_1 = rows.x[1],
                                                   .x_stride_2 = rows.x[2],
                                                   .z_stride_0 = rows.z[0],
                                                   .z_stride_1 = rows.z[1],
                                                   .z_stride_2 = rows.z[2],
                                                   .G = static_cast<int32_t>(G),
                                                   .D = static_cast<int32_t>(D),
                                                   .activation = z.defined() ? static_cast<int32_t>(activation) : -1,
                                                   .gate_first = !norm_before_gate,
                                                   .hf_rounding = hf_rounding,
                                                   .weight_kind = weight.dtype == DType::fp32 ? 1 : 2,
                                                   .eps = static_cast<float>(eps)});
  return y;
}

}  // namespace gdn
