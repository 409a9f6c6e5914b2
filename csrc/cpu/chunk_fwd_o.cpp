#include <vector>

#include "chunk.h"
#include "gen/kernels.h"

namespace gdn::cpu {

void chunk_fwd_o(const kernels::chunk_fwd_o::Keys& keys, const kernels::chunk_fwd_o::Args& a) {
  with_half(keys.T, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const Offsets cu{a.cu_seqlens, a.cu_stride, a.cu_words, a.T};
    const int64_t K = a.K, V = a.V, BT = keys.BT;
    parallel(chunk_slots(a.N, a.T, BT, a.cu_words) * a.HV, BT * V * (K + BT), [&](int64_t i) {
      const int64_t i_h = i % a.HV;
      const Chunk c = find_chunk(i / a.HV, cu, a.N, BT);
      const bool inside = c.n >= 0 && c.n < a.N;
      const int64_t row = (c.t - c.bos) / BT + (cu.words && inside ? chunk_offset(c.n, cu, BT) : 0);
      const T* h = static_cast<const T*>(a.h) + c.b * a.h_stride_b + row * a.h_stride_c + i_h * a.h_stride_h;
      const int64_t s_k = a.v_first ? 1 : a.h_stride_row, s_v = a.v_first ? a.h_stride_row : 1;
      auto head = [&](const void* p, int64_t t, int64_t s_b, int64_t s_t, int64_t offset) {
        return static_cast<const T*>(p) + c.b * s_b + t * s_t + offset;
      };
      auto gate = [&](int64_t t) {
        return load_gate<T>(a.g, c.b * a.g_stride_b + t * a.g_stride_t + i_h * a.g_stride_h, a.g_kind, 0);
      };
      std::vector<float> sum(V);
      for (int64_t t = c.t; t < std::min(c.t + BT, c.eos); ++t) {
        std::fill(sum.begin(), sum.end(), 0.0f);
        if (inside) {
          const T* q = head(a.q, t, a.q_stride_b, a.q_stride_t, i_h / (a.HV / a.H) * a.q_stride_h);
          const float d_t = std::exp2(gate(t) * a.g_log2) * a.scale;
          for (int64_t d = 0; d < K && row < a.NT; ++d)
            for (int64_t j = 0; j < V; ++j)
              sum[j] += static_cast<float>(q[d]) * d_t * static_cast<float>(h[d * s_k + j * s_v]);
          for (int64_t s = c.t; s <= t; ++s) {
            const T* k = head(a.k, s, a.k_stride_b, a.k_stride_t, i_h / (a.HV / a.H) * a.k_stride_h);
            const T* v = head(a.v, s, a.v_stride_b, a.v_stride_t, i_h * a.v_stride_h);
            float p = 0;
            for (int64_t d = 0; d < K; ++d) p += static_cast<float>(q[d]) * static_cast<float>(k[d]);
            p *= std::exp2((gate(t) - gate(s)) * a.g_log2) * a.scale;
            for (int64_t j = 0; j < V; ++j) sum[j] += p * static_cast<float>(v[j]);
          }
        }
        T* o = static_cast<T*>(a.o) + ((c.b * a.T + t) * a.HV + i_h) * V;
        for (int64_t j = 0; j < V; ++j) o[j] = round_to<T>(sum[j]);
      }
    });
  });
}

}  // namespace gdn::cpu
