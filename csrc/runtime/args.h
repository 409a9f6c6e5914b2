// Tensors as CUDA C++ kernels take them (csrc/cuda/common.h).
#pragma once

#include "cuda/common.h"
#include "view.h"

namespace gdn {

inline IndexArg index_arg(const View& t) {
  if (!t.defined()) return {};
  const int32_t words = t.dtype == DType::i64 ? 2 : 1;
  const auto* low = static_cast<const int32_t*>(t.data);
  return {low, low + words - 1, t.stride(0) * words, words};
}

// t [B, T, heads, ...]; `packed`: sequences lie one after another in the only batch row.
inline RowsArg rows_arg(const View& t, bool packed) {
  return {t.data, packed ? t.stride(1) : t.stride(0), t.stride(1), t.stride(2)};
}

// t [B, T, HV], or [HV].
inline GateArg gate_arg(const View& t, bool packed) {
  if (!t.defined()) return {};
  return {t.dim == 1 ? RowsArg{t.data, 0, 0, t.stride(0)} : rows_arg(t, packed), static_cast<int32_t>(t.dtype)};
}

inline Divisor divisor(int64_t d) {
  int32_t log2 = 0;
  while ((int64_t{1} << log2) < d) ++log2;
  return {static_cast<uint32_t>((int64_t{1} << (31 + log2)) / d + 1), 31 + log2};
}

}  // namespace gdn
