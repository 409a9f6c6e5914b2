#include <cmath>
#include <cstring>

#include "chunk.h"
#include "gen/kernels.h"

namespace gdn::cpu {

namespace {

float gate_input(const HeadGateArg& x, int64_t r, int64_t t, int64_t hv) {
  const int64_t at = t * x.stride_t + hv / r * x.stride_g + hv % r * x.stride_h;
  if (x.dtype == kFP32) return static_cast<const float*>(x.data)[at];
  return x.dtype == kBF16 ? static_cast<const bf16*>(x.data)[at] : static_cast<const fp16*>(x.data)[at];
}

}  // namespace

void fused_post_conv_prep(const kernels::fused_post_conv_prep::Keys& keys,
                          const kernels::fused_post_conv_prep::Args& a) {
  with_float(keys.T, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel(a.T, 2 * a.H * a.K + a.HV * a.V, [&](int64_t t) {
      const T* row = static_cast<const T*>(a.qkv) + t * a.qkv_stride;
      for (int64_t head = 0; head < 2 * a.H; ++head) {
        const T* x = row + head * a.K;
        T* y = static_cast<T*>(head < a.H ? a.q : a.k) + (t * a.H + head % a.H) * a.K;
        float sum = 0;
        for (int64_t i = 0; i < a.K; ++i) sum += static_cast<float>(x[i]) * static_cast<float>(x[i]);
        const float factor = 1 / std::sqrt(sum + 1e-6f);
        for (int64_t i = 0; i < a.K; ++i) y[i] = a.l2norm ? round_to<T>(static_cast<float>(x[i]) * factor) : x[i];
      }
      std::memcpy(static_cast<T*>(a.v) + t * a.HV * a.V, row + 2 * a.H * a.K, sizeof(T) * a.HV * a.V);
      for (int64_t hv = 0; hv < a.HV; ++hv) {
        const float x = gate_input(a.a, a.r, t, hv) + gate_input(a.dt_bias, a.r, 0, hv);
        const float g = -std::exp(gate_input(a.A_log, a.r, 0, hv)) * (x > 20 ? x : std::log1p(std::exp(x)));
        a.g[t * a.HV + hv] = a.g_linear ? std::exp(g) : g;
        a.beta[t * a.HV + hv] = 1 / (1 + std::exp(-gate_input(a.b, a.r, t, hv)));
      }
    });
  });
}

}  // namespace gdn::cpu
