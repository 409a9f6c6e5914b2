#include "gen/kernels.h"
#include "solve.h"

namespace gdn::cpu {

void chunk_scaled_dot_kkt(const kernels::chunk_scaled_dot_kkt::Keys& keys,
                          const kernels::chunk_scaled_dot_kkt::Args& a) {
  with_half(keys.T, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const Offsets cu{a.cu_seqlens, a.cu_stride, a.cu_words, a.T};
    const int64_t C = a.C;
    parallel(chunk_slots(a.N, a.T, C, a.cu_words) * a.HV, C * C * a.K / 2, [&](int64_t i) {
      const int64_t h = i % a.HV;
      const Chunk c = find_chunk(i / a.HV, cu, a.N, C);
      const int64_t L = std::min(C, c.eos - c.t);
      if (L <= 0) return;
      float A[64 * 64] = {};
      if (c.n >= 0 && c.n < a.N) scaled_kkt<T>(a, c, h, L, C, A);
      for (int64_t r = 0; r < L; ++r)
        std::copy_n(A + r * C, C, static_cast<float*>(a.A) + ((c.b * a.T + c.t + r) * a.HV + h) * C);
    });
  });
}

}  // namespace gdn::cpu
