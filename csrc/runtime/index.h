// How host functions hand index tensors and sequence bounds to kernels (see triton_src/common.py).
#pragma once

#include "check.h"
#include "view.h"

namespace gdn {

// An index tensor as 32-bit words: row i starts at word i * stride; words == 0 when it was not given.
struct Index {
  void* data = nullptr;
  int64_t stride = 0;
  int32_t words = 0;

  Index() = default;
  explicit Index(const View& t) {
    if (!t.defined()) return;
    words = t.dtype == DType::i64 ? 2 : 1;
    data = t.data;
    stride = t.stride(0) * words;
  }
};

// What bounds the entries of cu_seqlens where no argument does.
constexpr int64_t kUnknownTokens = int64_t{1} << 62;

// Chunk slots that kernels using find_chunk are launched over; `spare` as there.
inline int64_t chunk_slots(int64_t N, int64_t T, int64_t BT, bool varlen, int64_t spare = 1) {
  return varlen ? T / BT + spare * (N + 1) + 1 : N * ((T + BT - 1) / BT + spare - 1);
}

// Whether all data starts on 16 bytes and all strides but the last are multiples of 16 elements: what ":16?" hints
// promise in ALIGNED variants.
template <class... Views>
bool aligned(const Views&... views) {
  auto one = [](const View& t) {
    if (reinterpret_cast<uintptr_t>(t.data) % 16 != 0) return false;
    for (int64_t d = 0; d + 1 < t.dim; ++d)
      if (t.sizes[d] > 1 && t.strides[d] % 16 != 0) return false;
    return true;
  };
  return (one(views) && ...);
}

}  // namespace gdn
