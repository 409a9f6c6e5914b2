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

inline TableArg table_arg(const View& t) {
  if (!t.defined()) return {};
  const int32_t words = t.dtype == DType::i64 ? 2 : 1;
  const auto* low = static_cast<const int32_t*>(t.data);
  return {low, low + words - 1, t.stride(0) * words, t.stride(1) * words, t.size(1), words};
}

// t [B, T, heads, ...]; `packed`: sequences lie one after another in the only batch row.
inline RowsArg rows_arg(const View& t, bool packed) {
  return {t.data, packed ? t.stride(1) : t.stride(0), t.stride(1), t.stride(2)};
}

// t [B, T, HV], [B, HV] or [HV]; `grouped`: [.., H, ratio] in the place of HV = H * ratio.
inline GateArg gate_arg(const View& t, bool packed, int64_t ratio, bool grouped = false) {
  if (!t.defined()) return {};
  const int64_t before = t.dim - (grouped ? 2 : 1), step = t.stride(-1);
  const RowsArg at{t.data, before == 0 ? 0 : t.stride(packed), before == 2 ? t.stride(1) : 0, step};
  return {at, grouped ? t.stride(-2) : ratio * step, static_cast<int32_t>(t.dtype)};
}

inline Divisor divisor(int64_t d) {
  int32_t log2 = 0;
  while ((int64_t{1} << log2) < d) ++log2;
  return {static_cast<uint32_t>((int64_t{1} << (31 + log2)) / d + 1), 31 + log2};
}

}  // namespace gdn
