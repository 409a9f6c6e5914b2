// What the gated norms share: the checks of their arguments and the rows of x and z.
#pragma once

#include <algorithm>

#include "gen/kernels.h"
#include "norm_rows.h"
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

  RowDims dims;
  bool three = true;  // leading dimensions that are one in x and z are no more

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
    if (z.defined() && !same_shape() && !grouped()) return;
    for (int64_t d = 0; d + 1 < gate().dim; ++d) {
      int64_t x_stride = 0;  // of a group, a head of it, or a dimension as it is
      if (d + 1 == x.dim)
        x_stride = x.stride(-2);
      else if (grouped() && d + 2 == x.dim)
        x_stride = x.stride(-2) * z.size(-2);
      else
        x_stride = x.strides[d];
      dims.add(gate().sizes[d], x_stride, gate().strides[d]);
    }
    three = dims.used <= 3;
    if (D() >= 1 && width() % D() == 0) dims.add(G(), D(), D());
  }

  const View& gate() const { return z.defined() ? z : x; }
  int64_t width() const { return x.size(-1); }
  int64_t D() const { return group_size > 0 ? group_size : width(); }
  int64_t G() const { return width() / D(); }
  bool same_shape() const { return x.dim == z.dim && std::equal(x.sizes, x.sizes + x.dim, z.sizes); }
  bool grouped() const {
    return z.defined() && x.dim >= 2 && z.dim == x.dim + 1 && std::equal(x.sizes, x.sizes + x.dim - 2, z.sizes) &&
           z.size(-3) * z.size(-2) == x.size(-2) && z.size(-1) == x.size(-1);
  }

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

  // y like x, contiguous; it may be x itself. In fp8, divided by `out_scale` [1], or by the largest value of every
  // `quant_group` columns / 448, left in `scales`.
  void launch(const char* op, const View& y, const View& out_scale, const View& scales = {},
              int64_t quant_group = 0) const {
    const NormRows rows = dims.rows();
    const int32_t bits = lane_bits(D());
    const bool one_scale = quant_group == 0 || quant_group == D();  // of a row
    const int32_t quant_bits = one_scale ? bits : lane_bits(quant_group);
    const bool whole = bits >= 0 && quant_bits >= 0 && (one_scale || 8 << quant_bits == quant_group) && !rows.many &&
                       aligned(x, weight, gate());
    const auto kernel =
        pick<kernels::gated_rmsnorm>(op, x.device, {.T = x.dtype, .FP8 = y.dtype == DType::fp8, .ALIGNED = whole});
    // Tiles of rows a block takes one after another: as many as leave every multiprocessor full, up to 8.
    const int64_t tile = std::max<int64_t>(1, whole ? kernel.tiles.THREADS >> bits : kernel.tiles.THREADS / 32);
    const int64_t resident = int64_t{multiprocessors(x.device)} * kernel.tiles.BLOCKS;
    const int64_t tiles = whole ? std::clamp<int64_t>(ceil_div(rows.R, tile) / resident, 1, 8) : 1;
    kernel.launch(ceil_div(rows.R, tile * tiles), {.x = x.data,
                                                   .weight = weight.data,
                                                   .z = gate().data,
                                                   .y = y.data,
                                                   .out_scale = static_cast<const float*>(out_scale.data),
                                                   .scales = static_cast<float*>(scales.data),
                                                   .rows = rows,
                                                   .by_G = divisor(G()),
                                                   .G = static_cast<int32_t>(G()),
                                                   .D = static_cast<int32_t>(D()),
                                                   .quant_group = static_cast<int32_t>(one_scale ? D() : quant_group),
                                                   .tiles = static_cast<int32_t>(tiles),
                                                   .lane_bits = bits,
                                                   .quant_bits = quant_bits,
                                                   .activation = z.defined() ? static_cast<int32_t>(activation) : -1,
                                                   .gate_first = !norm_before_gate,
                                                   .hf_rounding = hf_rounding,
                                                   .weight_fp32 = weight.dtype == DType::fp32,
                                                   .eps = static_cast<float>(eps)});
  }
};

}  // namespace gdn
