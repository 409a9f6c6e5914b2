#include "chunk.h"
#include "gen/kernels.h"

namespace gdn::cpu {

namespace {

// out[i] = sum_j A_ij scale_j x_j for the rows of one chunk, with n columns.
template <class T>
void apply(const float* A, const float* scale, int64_t L, int64_t BT, const T* x, int64_t x_stride, T* out,
           int64_t out_stride, int64_t n) {
  float row[256];
  for (int64_t i = 0; i < L; ++i) {
    std::fill(row, row + n, 0.0f);
    for (int64_t j = 0; j < L; ++j) {
      const float a = A[i * BT + j] * scale[j];
      for (int64_t c = 0; c < n; ++c) row[c] += a * static_cast<float>(x[j * x_stride + c]);
    }
    for (int64_t c = 0; c < n; ++c) out[i * out_stride + c] = round_to<T>(row[c]);
  }
}

}  // namespace

void recompute_w_u(const kernels::recompute_w_u::Keys& keys, const kernels::recompute_w_u::Args& a) {
  with_half(keys.T, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const Offsets cu{a.cu_seqlens, a.cu_stride, a.cu_words, a.T};
    const int64_t BT = keys.BT;
    parallel(chunk_slots(a.N, a.T, BT, a.cu_words) * a.HV, BT * BT * (a.K + a.V), [&](int64_t i) {
      const int64_t h = i % a.HV;
      const Chunk c = find_chunk(i / a.HV, cu, a.N, BT);
      const int64_t L = std::min(BT, c.eos - c.t);
      if (L <= 0) return;
      const int64_t row = (c.b * a.T + c.t) * a.HV + h;
      T *w = static_cast<T*>(a.w) + row * a.K, *u = static_cast<T*>(a.u) + row * a.V;
      if (c.n < 0 || c.n >= a.N) {
        for (int64_t r = 0; r < L; ++r) {
          std::fill_n(w + r * a.HV * a.K, a.K, T(0.0f));
          std::fill_n(u + r * a.HV * a.V, a.V, T(0.0f));
        }
        return;
      }
      float A[64 * 64], scale_w[64], scale_u[64];
      for (int64_t r = 0; r < L; ++r) {
        const int64_t t = c.t + r;
        for (int64_t j = 0; j < L; ++j)
          A[r * BT + j] =
              load_gate<T>(a.A, c.b * a.A_stride_b + t * a.A_stride_t + h * a.A_stride_h + j, a.A_is_fp32 ? 1 : 2, 0);
        scale_u[r] =
            load_gate<T>(a.beta, c.b * a.beta_stride_b + t * a.beta_stride_t + h * a.beta_stride_h, a.beta_kind, 1);
        const float g = load_gate<T>(a.g, c.b * a.g_stride_b + t * a.g_stride_t + h * a.g_stride_h, a.g_kind, 0);
        scale_w[r] = scale_u[r] * std::exp2(g * a.g_log2);
      }
      const T* v = static_cast<const T*>(a.v) + c.b * a.v_stride_b + c.t * a.v_stride_t + h * a.v_stride_h;
      const T* k =
          static_cast<const T*>(a.k) + c.b * a.k_stride_b + c.t * a.k_stride_t + h / (a.HV / a.H) * a.k_stride_h;
      apply(A, scale_u, L, BT, v, a.v_stride_t, u, a.HV * a.V, a.V);
      apply(A, scale_w, L, BT, k, a.k_stride_t, w, a.HV * a.K, a.K);
    });
  });
}

}  // namespace gdn::cpu
