// Helpers of the CPU kernels: element access by run-time dtype, and torch's thread pool.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cstdint>

#include "runtime/view.h"

namespace gdn::cpu {

using bf16 = torch::headeronly::BFloat16;
using fp16 = torch::headeronly::Half;

// Calls f with a null pointer of the element type: with_dtype(d, [&](auto* t) { using T = std::remove_pointer_t<...>;
// }).
template <class F>
void with_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::bf16: return f(static_cast<bf16*>(nullptr));
    case DType::fp16: return f(static_cast<fp16*>(nullptr));
    default: return f(static_cast<float*>(nullptr));
  }
}

// The same for kernels that take no fp32.
template <class F>
void with_half(DType dtype, F&& f) {
  return dtype == DType::bf16 ? f(static_cast<bf16*>(nullptr)) : f(static_cast<fp16*>(nullptr));
}

// Element i of an index tensor, int32 or int64.
inline int64_t load_index(const void* p, int64_t i, bool is_i64) {
  return is_i64 ? static_cast<const int64_t*>(p)[i] : static_cast<const int32_t*>(p)[i];
}

// f(i) for every i in [0, n), over torch's intra-op threads; `cost` is the work of one i in elements.
template <class F>
void parallel(int64_t n, int64_t cost, const F& f) {
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, cost));
  torch::stable::parallel_for(0, n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i);
  });
}

}  // namespace gdn::cpu
