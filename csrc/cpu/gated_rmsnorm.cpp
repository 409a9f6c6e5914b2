#include <cmath>

#include "chunk.h"
#include "gen/kernels.h"
#include "runtime/activation.h"

namespace gdn::cpu {

void gated_rmsnorm(const kernels::gated_rmsnorm::Keys& keys, const kernels::gated_rmsnorm::Args& a) {
  with_float(keys.T, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel(a.R * a.G, a.D, [&](int64_t r) {
      const int64_t i_g = r % a.G, i = r / a.G;
      const int64_t i_2 = i % a.n2, i_1 = i / a.n2 % a.n1, i_0 = i / a.n2 / a.n1;
      const T* x =
          static_cast<const T*>(a.x) + i_0 * a.x_stride_0 + i_1 * a.x_stride_1 + i_2 * a.x_stride_2 + i_g * a.D;
      const T* z =
          static_cast<const T*>(a.z) + i_0 * a.z_stride_0 + i_1 * a.z_stride_1 + i_2 * a.z_stride_2 + i_g * a.D;
      T* y = static_cast<T*>(a.y) + r * a.D;
      auto gate = [&](int64_t d) {
        if (a.activation < 0) return 1.0f;
        const float v = static_cast<float>(x[d]) == 0 ? 0 : static_cast<float>(z[d]);
        if (a.activation == kNone) return v;
        const float s = 1 / (1 + std::exp(-v));
        return a.activation == kSilu ? v * s : s;
      };
      auto input = [&](int64_t d) { return static_cast<float>(x[d]) * (a.gate_first ? gate(d) : 1.0f); };

      float sum = 0;
      for (int64_t d = 0; d < a.D; ++d) sum += input(d) * input(d);
      const float scale = 1 / std::sqrt(sum / static_cast<float>(a.D) + a.eps);
      for (int64_t d = 0; d < a.D; ++d) {
        float n = input(d) * scale;
        if (a.hf_rounding) n = static_cast<float>(round_to<T>(n));
        n *= load_gate<T>(a.weight, i_g * a.D + d, a.weight_kind, 1);
        if (a.hf_rounding && a.weight_kind == 2) n = static_cast<float>(round_to<T>(n));
        y[d] = round_to<T>(n * (a.gate_first ? 1.0f : gate(d)));
      }
    });
  });
}

}  // namespace gdn::cpu
