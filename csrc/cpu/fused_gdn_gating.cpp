#include <cmath>

#include "chunk.h"
#include "gen/kernels.h"

namespace gdn::cpu {

void fused_gdn_gating(const kernels::fused_gdn_gating::Keys& keys, const kernels::fused_gdn_gating::Args& a) {
  with_float(keys.T, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel(a.R, a.HV * 16, [&](int64_t r) {
      const int64_t i_2 = r % a.n2, i_1 = r / a.n2 % a.n1, i_0 = r / a.n2 / a.n1;
      const int64_t o_a = i_0 * a.a_stride_0 + i_1 * a.a_stride_1 + i_2 * a.a_stride_2;
      const int64_t o_b = i_0 * a.b_stride_0 + i_1 * a.b_stride_1 + i_2 * a.b_stride_2;
      for (int64_t h = 0; h < a.HV; ++h) {
        const float A = load_gate<T>(a.A_log, h * a.A_stride, a.A_kind, 0);
        const float x = load_gate<T>(a.a, o_a + h / a.r * a.a_stride_g + h % a.r * a.a_stride_h, a.a_kind, 0) +
                        load_gate<T>(a.dt_bias, h * a.dt_stride, a.dt_kind, 0);
        const float b = load_gate<T>(a.b, o_b + h / a.r * a.b_stride_g + h % a.r * a.b_stride_h, a.b_kind, 0);
        const float bx = a.softplus_beta * x;
        const float softplus = bx > a.softplus_threshold
                                   ? x
                                   : (std::fmax(bx, 0.0f) + std::log1p(std::exp(-std::fabs(bx)))) / a.softplus_beta;
        static_cast<float*>(a.g)[r * a.HV + h] = -std::exp(A) * softplus;
        static_cast<float*>(a.beta)[r * a.HV + h] = 1 / (1 + std::exp(-b));
      }
    });
  });
}

}  // namespace gdn::cpu
