// Arguments of the kernel that moves rings' lengths on (advance_rings.cu), as host, CPU twin and device see them.
#pragma once

#include "common.h"

namespace gdn {

struct AdvanceRingsArgs {
  IndexArg lengths;     // [slots], written
  IndexArg read;        // [N] slots
  IndexArg accepted;    // [N]; words 0: all tokens of a row
  IndexArg cu_seqlens;  // [N + 1]; words 0: T tokens a row
  int64_t min_slot;     // slots outside [min_slot, slots) are padding
  int64_t slots;
  int64_t N;
  int64_t T;
  int64_t R;  // entries of a ring
};

// The length of a ring of m entries after a step of `tokens`, of which `accepted` stay; m where a row was padding. A
// row that has no room for its tokens was due: its entries have gone into its state.
#ifdef GDN_DEVICE
__device__ __forceinline__
#else
inline
#endif
    int64_t next_length(int64_t m, int64_t tokens, int64_t accepted, int64_t R) {
  if (m < 0 || m > R || tokens > R || accepted < 0 || accepted > tokens) return m;
  return (m + tokens > R ? 0 : m) + accepted;
}

}  // namespace gdn
