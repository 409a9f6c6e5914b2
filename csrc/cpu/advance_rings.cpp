#include "gen/kernels.h"
#include "recurrent.h"

namespace gdn::cpu {

void advance_rings(const kernels::advance_rings::Keys&, const kernels::advance_rings::Args& a) {
  const Offsets cu{a.cu_seqlens.low, a.cu_seqlens.stride, a.cu_seqlens.words, a.T};
  for (int64_t n = 0; n < a.N; ++n) {
    const int64_t slot = load_index(a.read, n);
    if (slot < a.min_slot || slot >= a.slots) continue;
    const int64_t tokens = cu.words ? std::max<int64_t>(cu[n + 1] - cu[n], 0) : a.T;
    const int64_t m = load_index(a.lengths, slot);
    const int64_t next = next_length(m, tokens, a.accepted.words ? load_index(a.accepted, n) : tokens, a.R);
    if (next != m) const_cast<int32_t*>(a.lengths.low)[slot * a.lengths.stride] = static_cast<int32_t>(next);
  }
}

}  // namespace gdn::cpu
