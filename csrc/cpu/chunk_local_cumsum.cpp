#include "chunk.h"
#include "gen/kernels.h"

namespace gdn::cpu {

void chunk_local_cumsum(const kernels::chunk_local_cumsum::Keys& keys, const kernels::chunk_local_cumsum::Args& a) {
  const Offsets cu{a.cu_seqlens, a.cu_stride, a.cu_words, a.T};
  const int64_t BT = keys.BT, S = a.S, M = a.H * S;
  parallel(chunk_slots(a.N, a.T, BT, a.cu_words) * M, BT, [&](int64_t i) {
    const int64_t m = i % M;
    const Chunk c = find_chunk(i / M, cu, a.N, BT);
    const int64_t L = std::min(BT, c.eos - c.t);
    const bool in_sequence = c.n >= 0 && c.n < a.N;
    float sum = 0;
    for (int64_t r = 0; r < L; ++r) {
      const int64_t t = c.t + (a.reverse ? L - 1 - r : r);
      const int64_t from = c.b * a.g_stride_b + t * a.g_stride_t + m / S * a.g_stride_h + m % S * a.g_stride_s;
      if (in_sequence) sum += load_state(a.g, from, a.g_kind);
      static_cast<float*>(a.y)[(c.b * a.T + t) * M + m] = sum * a.scale;
    }
  });
}

}  // namespace gdn::cpu
