#include "chunk.h"
#include "gen/kernels.h"

namespace gdn::cpu {

void prepare_lens(const kernels::prepare_lens::Keys&, const kernels::prepare_lens::Args& a) {
  const Offsets cu{a.cu_seqlens, a.cu_stride, a.cu_words, a.T};
  for (int64_t n = 0; n < a.N; ++n) store_index(a.lens, n, std::max<int64_t>(cu[n + 1] - cu[n], 0), a.cu_words);
}

}  // namespace gdn::cpu
