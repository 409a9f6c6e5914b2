// A and (I + A)^-1 of a chunk on the CPU, as in triton_src/solve.py.
#pragma once

#include "chunk.h"

namespace gdn::cpu {

// A[r, j] = beta_r (k_r . k_j) exp(g_r - g_j), j < r < L, into rows of C; a holds the arguments of a kernel that takes
// k, g and beta. Only what is below the diagonal is written.
template <class T, class Args>
void scaled_kkt(const Args& a, const Chunk& c, int64_t h, int64_t L, int64_t C, float* A) {
  const T* k = static_cast<const T*>(a.k) + c.b * a.k_stride_b + c.t * a.k_stride_t + h / (a.HV / a.H) * a.k_stride_h;
  float g[64];
  for (int64_t r = 0; r < L; ++r) {
    const int64_t t = c.t + r;
    g[r] = load_gate<T>(a.g, c.b * a.g_stride_b + t * a.g_stride_t + h * a.g_stride_h, a.g_kind, 0);
    const int64_t at = c.b * a.beta_stride_b + t * a.beta_stride_t + h * a.beta_stride_h;
    const float beta = load_gate<T>(a.beta, at, a.beta_kind, 1);
    for (int64_t j = 0; j < r; ++j) {
      float dot = 0;
      for (int64_t d = 0; d < a.K; ++d)
        dot += static_cast<float>(k[r * a.k_stride_t + d]) * static_cast<float>(k[j * a.k_stride_t + d]);
      A[r * C + j] = dot * beta * std::exp2((g[r] - g[j]) * a.g_log2);
    }
  }
}

// X = (I + A)^-1 for the first L rows, of C columns: row r is e_r - sum_{j < r} A[r, j] X[j].
inline void invert_unit_lower(const float* A, int64_t L, int64_t C, float* X) {
  std::fill_n(X, L * C, 0.0f);
  for (int64_t r = 0; r < L; ++r) {
    X[r * C + r] = 1;
    for (int64_t j = 0; j < r; ++j)
      for (int64_t m = 0; m <= j; ++m) X[r * C + m] -= A[r * C + j] * X[j * C + m];
  }
}

}  // namespace gdn::cpu
