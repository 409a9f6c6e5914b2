// Refusals: every unmet requirement of a call in one message, thrown before anything is launched or written.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>

#include "view.h"

namespace gdn {

class Checks {
 public:
  explicit Checks(const char* op) : op_(op), gradients_(aoti_torch_grad_mode_is_enabled()) {}

  // `t` exists and has the rank and sizes of `sizes` (-1: any size).
  Checks& shape(const char* arg, const View& t, std::initializer_list<int64_t> sizes);
  // `t` exists and has the shape of `other`.
  Checks& same_shape(const char* arg, const View& t, const char* other_arg, const View& other);
  // `t` does not ask for a gradient that no op here can give.
  Checks& no_grad(const char* arg, const View& t);
  Checks& dtype(const char* arg, const View& t, std::initializer_list<DType> allowed);
  // Same device as the first tensor seen; refuses devices other than CPU and CUDA.
  Checks& device(const char* arg, const View& t);
  // The last dimension has unit stride (or one element).
  Checks& unit_stride(const char* arg, const View& t);
  // An index tensor: int32 or int64, of shape `sizes`, any stride.
  Checks& index(const char* arg, const View& t, std::initializer_list<int64_t> sizes);
  // An activation: shape, dtype, device, no gradient and unit last stride together.
  Checks& activation(const char* arg, const View& t, std::initializer_list<int64_t> sizes,
                     std::initializer_list<DType> allowed);
  // An optional gate: [B, T, HV], fp32 or the activation dtype, any strides.
  Checks& gate(const char* arg, const View& t, std::initializer_list<int64_t> sizes, DType activation);
  // Base of the logarithm that gates are given in: none (natural) or 2.
  Checks& gate_base(std::optional<double> base);
  // An optional state [N, HV, S0, S1]: fp32, bf16 or fp16, unit last stride.
  Checks& state(const char* arg, const View& t, std::initializer_list<int64_t> sizes);
  // Slots of states or histories, updated in place, so never copied: [slots, ...] with contiguous slots that do not
  // overlap.
  Checks& pool(const char* arg, const View& t, std::initializer_list<int64_t> sizes,
               std::initializer_list<DType> allowed);
  // Memory given for a result, if it was: of its shape and dtype, contiguous and on 16 bytes like a new tensor. With
  // `inner`, where a kernel takes a row stride: only the last `inner` dimensions are contiguous, in rows evenly apart.
  Checks& out(const char* arg, const View& t, std::initializer_list<int64_t> sizes, DType dtype, int64_t inner = 0);
  Checks& out_like(const char* arg, const View& t, const View& shape, DType dtype, int64_t inner = 0);
  // Optional offsets of packed sequences: one-dimensional, N + 1 entries, and then B == 1.
  Checks& cu_seqlens(const View& t, int64_t B);
  // HV value heads share H key heads evenly.
  Checks& heads(int64_t H, int64_t HV);
  // K or V: 1 to 256.
  Checks& head_size(const char* letter, int64_t size);
  // Chunks of 16, 32 or 64 tokens.
  Checks& chunk_size(int64_t size);
  // Anything else: `expected` and `got` in words, which cost nothing while all is well; a tensor's shape is what was
  // got.
  Checks& that(bool ok, const char* arg, const char* expected, const char* got) {
    return ok ? *this : fail(arg, expected, got);
  }
  Checks& that(bool ok, const char* arg, const char* expected, int64_t got) {
    return ok ? *this : fail(arg, expected, std::to_string(got));
  }
  Checks& that(bool ok, const char* arg, const char* expected, const View& got) {
    return ok ? *this : fail(arg, expected, got.shape());
  }

  Checks& fail(const char* arg, const std::string& expected, const std::string& got);

  // Throws "gdn.<op>: <argument>: expected <...>, got <...>; ..." if anything was wrong.
  void done() const;

 private:
  const char* op_;
  bool gradients_;
  std::string text_;
  Device device_;
  bool has_device_ = false;
};

}  // namespace gdn
