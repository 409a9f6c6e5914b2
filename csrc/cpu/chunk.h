// What CPU kernels of the chunk algorithm share: sequences, chunks and gates, as in triton_src/common.py.
#pragma once

#include <algorithm>
#include <cmath>

#include "parallel.h"
#include "runtime/index.h"

namespace gdn::cpu {

// cu_seqlens as kernels get it: 32-bit words, clamped to [0, T].
struct Offsets {
  const void* data;
  int64_t stride;
  int32_t words;  // 0: dense
  int64_t T;

  int64_t operator[](int64_t i) const {
    const int32_t* p = static_cast<const int32_t*>(data) + i * stride;
    const int64_t value = words == 2 ? static_cast<int64_t>(p[1]) << 32 | static_cast<uint32_t>(p[0]) : p[0];
    return std::clamp<int64_t>(value, 0, T);
  }
};

// Element i of a contiguous index tensor of `words`-word integers.
inline void store_index(void* p, int64_t i, int64_t value, int32_t words) {
  if (words == 2)
    static_cast<int64_t*>(p)[i] = value;
  else
    static_cast<int32_t*>(p)[i] = static_cast<int32_t>(value);
}

// A chunk: its sequence n, batch row b, the sequence's tokens [bos, eos) of that row, and its first token t.
struct Chunk {
  int64_t n, b, bos, eos, t;
};

// find_chunk of triton_src/common.py.
inline Chunk find_chunk(int64_t slot, const Offsets& cu, int64_t N, int64_t BT) {
  if (cu.words == 0) {
    const int64_t NT = (cu.T + BT - 1) / BT;
    return {slot / NT, slot / NT, 0, cu.T, slot % NT * BT};
  }
  int64_t low = -1, high = N;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (cu[middle] / BT + middle + 1 <= slot)
      low = middle;
    else
      high = middle - 1;
  }
  const int64_t bos = low < 0 ? 0 : cu[low], eos = low >= N ? cu.T : cu[low + 1];
  return {low, 0, bos, eos, bos + (slot - (low < 0 ? 0 : bos / BT + low + 1)) * BT};
}

// chunk_offset of triton_src/common.py.
inline int64_t chunk_offset(int64_t n, const Offsets& cu, int64_t BT) {
  if (cu.words == 0) return n * ((cu.T + BT - 1) / BT);
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += (std::max<int64_t>(cu[i + 1] - cu[i], 0) + BT - 1) / BT;
  return count;
}

// Element `at` of a gate: kind 0 not given, 1 fp32, 2 the activation dtype T.
template <class T>
float load_gate(const void* p, int64_t at, int32_t kind, float missing) {
  if (kind == 0) return missing;
  return kind == 1 ? static_cast<const float*>(p)[at] : static_cast<float>(static_cast<const T*>(p)[at]);
}

// Element `at` of a state: kind 0 not given, 1 fp32, 2 bf16, 3 fp16.
inline float load_state(const void* p, int64_t at, int32_t kind) {
  switch (kind) {
    case 0: return 0;
    case 1: return static_cast<const float*>(p)[at];
    case 2: return static_cast<const bf16*>(p)[at];
    default: return static_cast<const fp16*>(p)[at];
  }
}

// x as T; fp16 saturates at its largest finite value instead of becoming infinite.
template <class T>
T round_to(float x) {
  if constexpr (std::is_same_v<T, fp16>) x = x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;
  return static_cast<T>(x);
}

// Stores x where load_state would read it.
inline void store_state(void* p, int64_t at, float x, int32_t kind) {
  switch (kind) {
    case 1: static_cast<float*>(p)[at] = x; break;
    case 2: static_cast<bf16*>(p)[at] = round_to<bf16>(x); break;
    default: static_cast<fp16*>(p)[at] = round_to<fp16>(x);
  }
}

}  // namespace gdn::cpu
