#include "gen/kernels.h"
#include "solve.h"

namespace gdn::cpu {

void solve_tril(const kernels::solve_tril::Keys&, const kernels::solve_tril::Args& a) {
  const Offsets cu{a.cu_seqlens, a.cu_stride, a.cu_words, a.T};
  const int64_t C = a.C;
  parallel(chunk_slots(a.N, a.T, C, a.cu_words) * a.H, C * C * C / 6, [&](int64_t i) {
    const int64_t h = i % a.H;
    const Chunk c = find_chunk(i / a.H, cu, a.N, C);
    const int64_t L = std::min(C, c.eos - c.t);
    if (L <= 0) return;
    float A[64 * 64], X[64 * 64] = {};
    if (c.n >= 0 && c.n < a.N) {
      for (int64_t r = 0; r < L; ++r)
        for (int64_t j = 0; j < r; ++j)
          A[r * C + j] =
              load_state(a.A, c.b * a.A_stride_b + (c.t + r) * a.A_stride_t + h * a.A_stride_h + j, a.A_kind);
      invert_unit_lower(A, L, C, X);
    }
    for (int64_t r = 0; r < L; ++r)
      for (int64_t j = 0; j < C; ++j)
        store_state(a.Ai, ((c.b * a.T + c.t + r) * a.H + h) * C + j, X[r * C + j], a.Ai_kind);
  });
}

}  // namespace gdn::cpu
