#include <torch/headeronly/util/Float8_e4m3fn.h>

#include <cmath>

#include "chunk.h"
#include "gen/kernels.h"
#include "norm_rows.h"
#include "runtime/activation.h"

namespace gdn::cpu {

namespace {

uint8_t to_fp8(float x) {
  x = x > kFp8Max ? kFp8Max : x < -kFp8Max ? -kFp8Max : x;
  return torch::headeronly::Float8_e4m3fn(x).x;
}

}  // namespace

void gated_rmsnorm(const kernels::gated_rmsnorm::Keys& keys, const kernels::gated_rmsnorm::Args& a) {
  with_float(keys.T, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel(a.rows.R, (keys.FP8 ? 4 : 1) * a.D, [&](int64_t row) {
      const RowAt at = row_offsets(a.rows, row);
      const T *x = static_cast<const T*>(a.x) + at.x, *z = static_cast<const T*>(a.z) + at.z;
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
        v *= load_gate<T>(a.weight, row % a.G * a.D + d, a.weight_fp32 ? 1 : 2, 1);
        v = maybe_rounded(a.hf_rounding && !a.weight_fp32, v);
        return maybe_rounded(a.hf_rounding, v * (a.gate_first ? 1.0f : gate(d)));
      };
      if (!keys.FP8) {
        for (int64_t d = 0; d < a.D; ++d) static_cast<T*>(a.y)[row * a.D + d] = round_to<T>(value(d));
        return;
      }
      for (int64_t begin = 0; begin < a.D; begin += a.quant_group) {
        float largest = 0;
        for (int64_t d = begin; d < begin + a.quant_group; ++d) largest = std::fmax(largest, std::fabs(value(d)));
        const float scale = a.out_scale ? *a.out_scale : std::fmax(largest, kSmallestMaximum) / kFp8Max;
        for (int64_t d = begin; d < begin + a.quant_group; ++d)
          static_cast<uint8_t*>(a.y)[row * a.D + d] = to_fp8(value(d) / scale);
        if (a.scales) a.scales[(row * a.D + begin) / a.quant_group] = scale;
      }
    });
  });
}

}  // namespace gdn::cpu
