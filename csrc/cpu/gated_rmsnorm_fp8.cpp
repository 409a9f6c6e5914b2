#include <torch/headeronly/util/Float8_e4m3fn.h>

#include <cmath>

#include "chunk.h"
#include "gen/kernels.h"
#include "runtime/activation.h"

namespace gdn::cpu {

namespace {

uint8_t to_fp8(float x) {
  x = x > kFp8Max ? kFp8Max : x < -kFp8Max ? -kFp8Max : x;
  return torch::headeronly::Float8_e4m3fn(x).x;
}

}  // namespace

void gated_rmsnorm_fp8(const kernels::gated_rmsnorm_fp8::Keys& keys, const kernels::gated_rmsnorm_fp8::Args& a) {
  with_float(keys.T, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel(a.R * a.G, 4 * a.D, [&](int64_t item) {
      const int64_t i_g = item % a.G, i = item / a.G;
      const int64_t i_2 = i % a.n2, i_1 = i / a.n2 % a.n1, i_0 = i / a.n2 / a.n1;
      auto row = [&](const void* p, const int64_t (&strides)[3]) {
        return static_cast<const T*>(p) + i_0 * strides[0] + i_1 * strides[1] + i_2 * strides[2] + i_g * a.D;
      };
      const T *x = row(a.x, a.x_strides), *z = row(a.z, a.z_strides);
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
      const float factor = 1 / std::sqrt(sum / static_cast<float>(a.D) + a.eps);
      auto value = [&](int64_t d) {
        auto maybe_rounded = [&](bool rounds, float v) { return rounds ? static_cast<float>(round_to<T>(v)) : v; };
        float v = maybe_rounded(a.hf_rounding, input(d) * factor);
        v *= load_gate<T>(a.weight, i_g * a.D + d, a.weight_fp32 ? 1 : 2, 1);
        v = maybe_rounded(a.hf_rounding && !a.weight_fp32, v);
        return maybe_rounded(a.hf_rounding, v * (a.gate_first ? 1.0f : gate(d)));
      };
      for (int64_t begin = 0; begin < a.D; begin += a.quant_group) {
        float largest = 0;
        for (int64_t d = begin; d < begin + a.quant_group; ++d) largest = std::fmax(largest, std::fabs(value(d)));
        const float scale = a.out_scale ? *a.out_scale : std::fmax(largest, kSmallestMaximum) / kFp8Max;
        for (int64_t d = begin; d < begin + a.quant_group; ++d) a.y[item * a.D + d] = to_fp8(value(d) / scale);
        if (a.scales) a.scales[(item * a.D + begin) / a.quant_group] = scale;
      }
    });
  });
}

}  // namespace gdn::cpu
