// What the gated norms share: the checks of their arguments and the rows of x and z.
#pragma once

#include <algorithm>

#include "gen/kernels.h"
#include "runtime/activation.h"
#include "runtime/index.h"

namespace gdn {

// A call: x [..., D], z like it or with x's second-last dimension in groups, [..., H, r, D].
struct GatedNorm {
  View x, weight, z;
  double eps;
  int64_t activation;
  bool norm_before_gate;
  int64_t group_size;
  bool hf_rounding;

  // The leading dimensions of x and z, those merged that are one dimension in both: [n0, n1, n2] rows.
  int64_t n[3] = {1, 1, 1}, x_strides[3] = {0, 0, 0}, z_strides[3] = {0, 0, 0};
  bool three = true;  // they are no more than three

  GatedNorm(const View& x_, const View& weight_, const View& z_, double eps_, int64_t activation_,
            bool norm_before_gate_, int64_t group_size_, bool hf_rounding_)
      : x(x_),
        weight(weight_),
        z(z_),
        eps(eps_),
        activation(activation_),
        norm_before_gate(norm_before_gate_),
        group_size(group_size_),
        hf_rounding(hf_rounding_) {
    if (x.numel() == 0 || (z.defined() && !same_shape() && !grouped())) return;
    int used = 0;
    for (int64_t d = 0; d + 1 < gate().dim; ++d) {
      const int64_t size = gate().sizes[d], z_stride = gate().strides[d];
      int64_t x_stride = 0;  // of a group, a head of it, or a dimension as it is
      if (d + 1 == x.dim)
        x_stride = x.stride(-2);
      else if (grouped() && d + 2 == x.dim)
        x_stride = x.stride(-2) * z.size(-2);
      else
        x_stride = x.strides[d];
      if (size == 1) continue;
      const bool merge = used > 0 && x_strides[used - 1] == size * x_stride && z_strides[used - 1] == size * z_stride;
      const int i = merge ? used - 1 : used++;
      if (i > 2) {
        three = false;
        return;
      }
      n[i] *= size, x_strides[i] = x_stride, z_strides[i] = z_stride;
    }
  }

  const View& gate() const { return z.defined() ? z : x; }
  int64_t width() const { return x.size(-1); }
  int64_t D() const { return group_size > 0 ? group_size : width(); }
  int64_t G() const { return width() / D(); }
  int64_t R() const { return x.numel() / width(); }
  bool same_shape() const { return x.dim == z.dim && std::equal(x.sizes, x.sizes + x.dim, z.sizes); }
  bool grouped() const {
    return z.defined() && x.dim >= 2 && z.dim == x.dim + 1 && std::equal(x.sizes, x.sizes + x.dim - 2, z.sizes) &&
           z.size(-3) * z.size(-2) == x.size(-2) && z.size(-1) == x.size(-1);
  }
  bool on_16_bytes() const { return aligned(x, weight, gate()); }

  void check(Checks& checks) const {
    checks.that(x.defined(), "x", "a tensor", "None")
        .dtype("x", x, {DType::bf16, DType::fp16, DType::fp32})
        .device("x", x)
        .no_grad("x", x)
        .unit_stride("x", x)
        .that(x.dim >= 1 && x.dim <= 4, "x", "1 to 4 dimensions", x)
        .that(x.dim < 1 || (width() >= 1 && width() <= INT32_MAX), "x", "a last dimension of at least 1", x)
        .activation("weight", weight, {width()}, {DType::fp32, x.dtype})
        .that(activation >= kNone && activation <= kSigmoid, "activation", "0 (none), 1 (silu) or 2 (sigmoid)",
              activation)
        .that(group_size >= 0 && (width() < 1 || width() % D() == 0), "group_size", "0 or a divisor of x's last size",
              group_size)
        .that(three, "z", "leading dimensions that are three at most where they are one in x and z", gate());
    if (z.defined() && z.dim == x.dim + 1)
      checks.that(grouped(), "z", "the shape of x with its second-last dimension in groups", z);
    else if (z.defined())
      checks.same_shape("z", z, "x", x);
    if (z.defined()) checks.dtype("z", z, {x.dtype}).device("z", z).no_grad("z", z).unit_stride("z", z);
  }

  // y like x, and contiguous; it may be x itself. In fp8, divided by `out_scale` [1], if that is given.
  void launch(const char* op, const View& y, const View& out_scale) const {
    if (out_scale.defined()) return launch_fp8(op, y, out_scale, {}, D());
    const int64_t columns = D(), groups = G(), rows = R();
    const bool tile = (columns == 64 || columns == 128 || columns == 256) && x.dtype != DType::fp32 && on_16_bytes();
    const auto kernel = pick<kernels::gated_rmsnorm>(
        op, x.device, {.T = x.dtype, .BD = tile ? static_cast<int>(columns) : 256, .ALIGNED = tile});
    kernel.launch(groups * ceil_div(rows, kernel.tiles.BR),
                  {.x = x.data,
                   .weight = weight.data,
                   .z = gate().data,
                   .y = y.data,
                   .R = rows,
                   .n1 = n[1],
                   .n2 = n[2],
                   .x_stride_0 = x_strides[0],
                   .x_stride_1 = x_strides[1],
                   .x_stride_2 = x_strides[2],
                   .z_stride_0 = z_strides[0],
                   .z_stride_1 = z_strides[1],
                   .z_stride_2 = z_strides[2],
                   .G = static_cast<int32_t>(groups),
                   .D = static_cast<int32_t>(columns),
                   .activation = z.defined() ? static_cast<int32_t>(activation) : -1,
                   .gate_first = !norm_before_gate,
                   .hf_rounding = hf_rounding,
                   .weight_kind = weight.dtype == DType::fp32 ? 1 : 2,
                   .eps = static_cast<float>(eps)});
  }

  // y in fp8: divided by `out_scale` [1], or by the largest value of every `quant_group` columns / 448, left in
  // `scales`.
  void launch_fp8(const char* op, const View& y, const View& out_scale, const View& scales, int64_t quant_group) const {
    // 16 bytes a lane where heads are 2^n lanes, and so are the columns of a scale.
    auto lanes = [](int64_t columns) {
      return columns % 8 == 0 && columns <= 256 && (columns & (columns - 1)) == 0 ? static_cast<int32_t>(columns / 8)
                                                                                  : 0;
    };
    const bool whole = lanes(D()) > 0 && lanes(quant_group) > 0 && on_16_bytes();
    const auto kernel = pick<kernels::gated_rmsnorm_fp8>(op, x.device, {.T = x.dtype, .ALIGNED = whole});
    const int64_t items = R() * G();
    const int64_t rows = whole ? kernel.tiles.THREADS / lanes(D()) : kernel.tiles.WARPS;
    const int64_t programs = ceil_div(items, std::max<int64_t>(rows, 1));  // a CPU twin has tiles of 1
    kernel.launch(programs, {.x = x.data,
                             .weight = weight.data,
                             .z = gate().data,
                             .y = static_cast<uint8_t*>(y.data),
                             .out_scale = static_cast<const float*>(out_scale.data),
                             .scales = static_cast<float*>(scales.data),
                             .R = R(),
                             .n1 = n[1],
                             .n2 = n[2],
                             .x_strides = {x_strides[0], x_strides[1], x_strides[2]},
                             .z_strides = {z_strides[0], z_strides[1], z_strides[2]},
                             .G = static_cast<int32_t>(G()),
                             .D = static_cast<int32_t>(D()),
                             .quant_group = static_cast<int32_t>(quant_group),
                             .lanes = lanes(D()),
                             .quant_lanes = lanes(quant_group),
                             .activation = z.defined() ? static_cast<int32_t>(activation) : -1,
                             .gate_first = !norm_before_gate,
                             .hf_rounding = hf_rounding,
                             .weight_fp32 = weight.dtype == DType::fp32,
                             .eps = static_cast<float>(eps)});
  }
};

}  // namespace gdn
