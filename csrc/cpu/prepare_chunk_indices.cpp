#include "chunk.h"
#include "gen/kernels.h"

namespace gdn::cpu {

void prepare_chunk_indices(const kernels::prepare_chunk_indices::Keys&, const kernels::prepare_chunk_indices::Args& a) {
  const int64_t* offsets = static_cast<const int64_t*>(a.offsets);
  int64_t r = 0;
  for (int64_t n = 0; n < a.N; ++n)
    for (; r < std::min(offsets[n + 1], a.R); ++r) {
      store_index(a.indices, 2 * r, n, a.index_words);
      store_index(a.indices, 2 * r + 1, r - offsets[n], a.index_words);
    }
  for (int64_t i = 2 * r; i < 2 * a.R; ++i) store_index(a.indices, i, -1, a.index_words);
}

}  // namespace gdn::cpu
