#include "chunk.h"
#include "gen/kernels.h"

namespace gdn::cpu {

void prepare_chunk_offsets(const kernels::prepare_chunk_offsets::Keys&, const kernels::prepare_chunk_offsets::Args& a) {
  const Offsets cu{a.cu_seqlens, a.cu_stride, a.cu_words, a.T};
  int64_t count = 0;
  store_index(a.offsets, 0, 0, a.offset_words);
  for (int64_t n = 0; n < a.N; ++n) {
    count += (std::max<int64_t>(cu[n + 1] - cu[n], 0) + a.C - 1) / a.C;
    store_index(a.offsets, n + 1, count, a.offset_words);
  }
}

}  // namespace gdn::cpu
