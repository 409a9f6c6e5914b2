// The gates of a layer: the checks of their arguments, and the one launch.
#pragma once

#include "gen/kernels.h"

namespace gdn {

// a, b [..., HV], or heads in groups [..., H, r]; A_log, dt_bias [HV].
struct Gating {
  View A_log, a, b, dt_bias;
  double softplus_beta, softplus_threshold;

  // Heads in groups, where they are not all of the last dimension.
  bool grouped() const {
    return a.dim >= 3 && A_log.dim == 1 && a.size(-1) != A_log.size(0) && a.size(-2) * a.size(-1) == A_log.size(0);
  }
  int64_t HV() const { return grouped() ? a.size(-2) * a.size(-1) : a.size(-1); }
  // The one 16-bit dtype among the inputs.
  DType half() const {
    for (const View* t : {&a, &b, &A_log, &dt_bias})
      if (t->dtype == DType::bf16 || t->dtype == DType::fp16) return t->dtype;
    return DType::bf16;
  }

  // g, beta [..., HV] fp32, contiguous.
  void launch(const char* op, const View& g, const View& beta) const {
    const auto kernel = pick<kernels::fused_gdn_gating>(op, a.device, {.T = half()});
    const int64_t R = a.numel() / HV(), last = grouped() ? -2 : -1;
    auto kind = [](const View& t) { return t.dtype == DType::fp32 ? 1 : 2; };
    kernel.launch(ceil_div(R, kernel.tiles.BR) * ceil_div(HV(), kernel.tiles.BH),
                  {.A_log = A_log.data,
                   .a = a.data,
                   .b = b.data,
                   .dt_bias = dt_bias.data,
                   .g = g.data,
                   .beta = beta.data,
                   .R = R,
                   .n1 = a.dim >= 2 - last ? a.size(last - 2) : 1,
                   .n2 = a.dim >= 1 - last ? a.size(last - 1) : 1,
                   .A_stride = A_log.stride(0),
                   .dt_stride = dt_bias.stride(0),
                   .a_stride_0 = a.stride(last - 3),
                   .a_stride_1 = a.stride(last - 2),
                   .a_stride_2 = a.stride(last - 1),
                   .a_stride_g = grouped() ? a.stride(-2) : 0,
                   .a_stride_h = a.stride(-1),
                   .b_stride_0 = b.stride(last - 3),
                   .b_stride_1 = b.stride(last - 2),
                   .b_stride_2 = b.stride(last - 1),
                   .b_stride_g = grouped() ? b.stride(-2) : 0,
                   .b_stride_h = b.stride(-1),
                   .HV = static_cast<int32_t>(HV()),
                   .r = static_cast<int32_t>(a.size(-1)),
                   .A_kind = kind(A_log),
                   .a_kind = kind(a),
                   .b_kind = kind(b),
                   .dt_kind = kind(dt_bias),
                   .softplus_beta = static_cast<float>(softplus_beta),
                   .softplus_threshold = static_cast<float>(softplus_threshold)});
  }
};

}  // namespace gdn
