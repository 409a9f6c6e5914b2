// How host functions hand gates (g, beta) and states to kernels: dtype as a flag, not as a variant.
#pragma once

#include <optional>

#include "check.h"
#include "view.h"

namespace gdn {

// A gate tensor [B, T, HV] of any strides. kind: 0 not given, 1 fp32, 2 the activation dtype (see load_gate).
struct Gate {
  void* data = nullptr;
  int64_t stride_b = 0, stride_t = 0, stride_h = 0;
  int32_t kind = 0;

  Gate() = default;
  explicit Gate(const View& t) {
    if (!t.defined()) return;
    data = t.data;
    stride_b = t.stride(0), stride_t = t.stride(1), stride_h = t.stride(2);
    kind = t.dtype == DType::fp32 ? 1 : 2;
  }
};

// What turns gate values into powers of 2: gates are natural logarithms unless gate_base 2 is given.
inline float log2_of_gate(std::optional<double> gate_base) {
  return gate_base.has_value() ? 1.0f : 1.4426950408889634f;
}

// dtype of a state as kernels see it (see load_state): 0 not given, 1 fp32, 2 bf16, 3 fp16, 4 fp8.
inline int32_t state_kind(const View& t) {
  return !t.defined() ? 0 : t.dtype == DType::fp32 ? 1 : t.dtype == DType::bf16 ? 2 : t.dtype == DType::fp16 ? 3 : 4;
}

}  // namespace gdn
