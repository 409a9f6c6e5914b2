#include "gen/kernels.h"
#include "solve.h"

namespace gdn::cpu {

void chunk_kkt_solve(const kernels::chunk_kkt_solve::Keys& keys, const kernels::chunk_kkt_solve::Args& a) {
  with_half(keys.T, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int64_t C = 64;
    const Offsets cu{a.cu_seqlens, a.cu_stride, a.cu_words, a.T};
    parallel(chunk_slots(a.N, a.T, C, a.cu_words) * a.HV, C * C * a.K / 2, [&](int64_t i) {
      const int64_t h = i % a.HV;
      const Chunk c = find_chunk(i / a.HV, cu, a.N, C);
      const int64_t L = std::min(C, c.eos - c.t);
      if (L <= 0) return;
      float A[C * C], X[C * C] = {};
      if (c.n >= 0 && c.n < a.N) {
        scaled_kkt<T>(a, c, h, L, C, A);
        invert_unit_lower(A, L, C, X);
      }
      for (int64_t r = 0; r < L; ++r)
        for (int64_t j = 0; j < C; ++j)
          static_cast<T*>(a.Ai)[((c.b * a.T + c.t + r) * a.HV + h) * C + j] = round_to<T>(X[r * C + j]);
    });
  });
}

}  // namespace gdn::cpu
