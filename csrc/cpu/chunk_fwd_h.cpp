#include <vector>

#include "chunk.h"
#include "gen/kernels.h"

namespace gdn::cpu {

namespace {

// Rows of h past the last chunk, and v_new of tokens of no sequence.
template <class T>
void zero_unused(const kernels::chunk_fwd_h::Args& a, const Offsets& cu, int64_t BT) {
  if (cu.words == 0) return;
  const int64_t size = int64_t{a.HV} * a.K * a.V, used = std::min(chunk_offset(a.N, cu, BT), a.rows);
  std::fill(static_cast<T*>(a.h) + used * size, static_cast<T*>(a.h) + a.rows * size, T(0.0f));
  if (!a.save_new_value) return;
  T* v_new = static_cast<T*>(a.v_new);
  std::fill(v_new, v_new + cu[0] * a.HV * a.V, T(0.0f));
  std::fill(v_new + cu[a.N] * a.HV * a.V, v_new + a.T * a.HV * a.V, T(0.0f));
}

}  // namespace

void chunk_fwd_h(const kernels::chunk_fwd_h::Keys& keys, const kernels::chunk_fwd_h::Args& a) {
  with_half(keys.T, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const Offsets cu{a.cu_seqlens, a.cu_stride, a.cu_words, a.T};
    const int64_t K = a.K, V = a.V, BT = keys.BT;
    zero_unused<T>(a, cu, BT);
    parallel(a.N * a.HV, a.T * K * V, [&](int64_t i) {
      const int64_t n = i / a.HV, i_h = i % a.HV, b = cu.words ? 0 : n;
      const int64_t bos = cu.words ? cu[n] : 0, eos = cu.words ? cu[n + 1] : a.T;
      const int64_t s_k = a.v_first ? 1 : V, s_v = a.v_first ? K : 1;  // strides of h and ht
      std::vector<float> state(K * V), row(V), scaled(V);
      for (int64_t c = 0; c < K * V; ++c) {
        const int64_t at = a.v_first ? c % V * a.h0_stride_row + c / V : c / V * a.h0_stride_row + c % V;
        state[c] = load_state(a.h0, n * a.h0_stride_n + i_h * a.h0_stride_h + at, a.h0_kind);
      }
      int64_t i_row = chunk_offset(n, cu, BT);
      for (int64_t t0 = bos; t0 < eos; t0 += BT, ++i_row) {
        if (i_row < a.rows)
          for (int64_t c = 0; c < K * V; ++c)
            static_cast<T*>(a.h)[(i_row * a.HV + i_h) * K * V + c / V * s_k + c % V * s_v] = round_to<T>(state[c]);
        const std::vector<float> start = state;
        const int64_t end = std::min(t0 + BT, eos);
        auto gate = [&](int64_t t) {
          return load_gate<T>(a.g, b * a.g_stride_b + t * a.g_stride_t + i_h * a.g_stride_h, a.g_kind, 0);
        };
        const float decay = std::exp2(gate(end - 1) * a.g_log2);
        for (float& s : state) s *= decay;
        for (int64_t t = t0; t < end; ++t) {
          const T* k =
              static_cast<const T*>(a.k) + b * a.k_stride_b + t * a.k_stride_t + i_h / (a.HV / a.H) * a.k_stride_h;
          const T* w = static_cast<const T*>(a.w) + b * a.w_stride_b + t * a.w_stride_t + i_h * a.w_stride_h;
          const T* u = static_cast<const T*>(a.u) + b * a.u_stride_b + t * a.u_stride_t + i_h * a.u_stride_h;
          for (int64_t j = 0; j < V; ++j) row[j] = static_cast<float>(u[j]);
          for (int64_t d = 0; d < K; ++d) {
            const float x = static_cast<float>(w[d]);
            for (int64_t j = 0; j < V; ++j) row[j] -= x * start[d * V + j];
          }
          if (a.save_new_value) {
            T* v_new = static_cast<T*>(a.v_new) + ((b * a.T + t) * a.HV + i_h) * V;
            for (int64_t j = 0; j < V; ++j) v_new[j] = round_to<T>(row[j]);
          }
          const float d_t = std::exp2((gate(end - 1) - gate(t)) * a.g_log2);
          for (int64_t d = 0; d < K; ++d) {
            const float x = static_cast<float>(k[d]) * d_t;
            for (int64_t j = 0; j < V; ++j) state[d * V + j] += x * row[j];
          }
        }
      }
      if (a.save_final_state)
        for (int64_t c = 0; c < K * V; ++c)
          static_cast<float*>(a.ht)[(n * a.HV + i_h) * K * V + c / V * s_k + c % V * s_v] = state[c];
    });
  });
}

}  // namespace gdn::cpu
