#include <vector>

#include "chunk.h"
#include "gen/kernels.h"

namespace gdn::cpu {

// Row r of X = (I + A)^-1 is e_r - sum_{j < r} A[r, j] X[j].
void solve_tril(const kernels::solve_tril::Keys&, const kernels::solve_tril::Args& a) {
  const Offsets cu{a.cu_seqlens, a.cu_stride, a.cu_words, a.T};
  const int64_t C = a.C;
  parallel(chunk_slots(a.N, a.T, C, a.cu_words != 0) * a.H, C * C * C / 6, [&](int64_t i) {
    const int64_t h = i % a.H;
    const Chunk c = find_chunk(i / a.H, cu, a.N, C);
    const bool in_sequence = c.n >= 0 && c.n < a.N;
    std::vector<float> X(C * C, 0.0f);
    for (int64_t r = 0; r < std::min(C, c.eos - c.t); ++r) {
      const int64_t from = c.b * a.A_stride_b + (c.t + r) * a.A_stride_t + h * a.A_stride_h;
      const int64_t to = ((c.b * a.T + c.t + r) * a.H + h) * C;
      float* x = &X[r * C];
      if (in_sequence) {
        x[r] = 1;
        for (int64_t j = 0; j < r; ++j) {
          const float f = load_state(a.A, from + j, a.A_kind);
          for (int64_t m = 0; m <= j; ++m) x[m] -= f * X[j * C + m];
        }
      }
      for (int64_t m = 0; m < C; ++m) store_state(a.Ai, to + m, x[m], a.Ai_kind);
    }
  });
}

}  // namespace gdn::cpu
