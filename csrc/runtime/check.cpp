#include "check.h"

#include <dlfcn.h>

#include <algorithm>

#include "platform.h"

namespace gdn {

namespace {

// The stable ABI has no getter for requires_grad. libc10 exports this one; where a future torch does not, the
// check is skipped. An at::Tensor is one pointer to its TensorImpl.
bool requires_grad(const View& t) {
  using Getter = bool (*)(const void*);
  static const Getter getter = [] {
    void* lib = loaded_library("libc10.so");
    return lib ? reinterpret_cast<Getter>(dlsym(lib, "_ZNK3c1010TensorImpl13requires_gradEv")) : nullptr;
  }();
  return getter != nullptr && getter(*reinterpret_cast<void* const*>(t.handle));
}

std::string words(std::initializer_list<int64_t> sizes) {
  std::string text = "shape [";
  bool first = true;
  for (int64_t s : sizes) {
    text += (first ? "" : ", ") + (s < 0 ? std::string("any") : std::to_string(s));
    first = false;
  }
  return text + "]";
}

}  // namespace

Checks& Checks::fail(const char* arg, const std::string& expected, const std::string& got) {
  text_ += std::string(text_.empty() ? "" : "; ") + arg + ": expected " + expected + ", got " + got;
  return *this;
}

Checks& Checks::shape(const char* arg, const View& t, std::initializer_list<int64_t> sizes) {
  if (!t.defined()) return fail(arg, "a tensor", "None");
  bool same = t.dim == static_cast<int64_t>(sizes.size());
  for (int64_t d = 0; same && d < t.dim; ++d) same = sizes.begin()[d] < 0 || sizes.begin()[d] == t.sizes[d];
  return same ? *this : fail(arg, words(sizes), t.shape());
}

Checks& Checks::same_shape(const char* arg, const View& t, const char* other_arg, const View& other) {
  if (!t.defined()) return fail(arg, "a tensor", "None");
  const bool same = t.dim == other.dim && std::equal(t.sizes, t.sizes + t.dim, other.sizes);
  return same ? *this : fail(arg, std::string("the shape of ") + other_arg + ", " + other.shape(), t.shape());
}

Checks& Checks::no_grad(const char* arg, const View& t) {
  if (gradients_ && t.defined() && requires_grad(t))
    fail(arg, "no gradient (there is no backward: call under torch.no_grad() or detach)", "requires_grad=True");
  return *this;
}

Checks& Checks::dtype(const char* arg, const View& t, std::initializer_list<DType> allowed) {
  if (!t.defined()) return *this;
  for (DType d : allowed)
    if (d == t.dtype) return *this;
  std::string expected;
  for (const DType* d = allowed.begin(); d != allowed.end(); ++d)
    if (std::find(allowed.begin(), d, *d) == d) expected += (expected.empty() ? "" : " or ") + std::string(name(*d));
  return fail(arg, expected, name(t.dtype));
}

Checks& Checks::device(const char* arg, const View& t) {
  if (!t.defined()) return *this;
  if (!has_device_) {
    has_device_ = true;
    device_ = t.device;
    if (!device_.is_cpu() && device_.type != aoti_torch_device_type_cuda())
      fail(arg, "a CPU or CUDA tensor", device_.str());
  } else if (!(t.device == device_)) {
    fail(arg, device_.str() + " like the tensors before it", t.device.str());
  }
  return *this;
}

Checks& Checks::unit_stride(const char* arg, const View& t) {
  if (!t.defined() || t.dim == 0 || t.size(-1) <= 1 || t.stride(-1) == 1) return *this;
  return fail(arg, "unit stride in the last dimension", "stride " + std::to_string(t.stride(-1)));
}

Checks& Checks::index(const char* arg, const View& t, std::initializer_list<int64_t> sizes) {
  return shape(arg, t, sizes).dtype(arg, t, {DType::i32, DType::i64}).device(arg, t);
}

Checks& Checks::activation(const char* arg, const View& t, std::initializer_list<int64_t> sizes,
                           std::initializer_list<DType> allowed) {
  return shape(arg, t, sizes).dtype(arg, t, allowed).device(arg, t).no_grad(arg, t).unit_stride(arg, t);
}

Checks& Checks::gate(const char* arg, const View& t, std::initializer_list<int64_t> sizes, DType activation) {
  if (!t.defined()) return *this;
  shape(arg, t, sizes).device(arg, t).no_grad(arg, t);
  return activation == DType::fp32 ? dtype(arg, t, {DType::fp32}) : dtype(arg, t, {DType::fp32, activation});
}

Checks& Checks::gate_base(std::optional<double> base) {
  if (!base.has_value() || *base == 2) return *this;
  return fail("gate_base", "None (natural logarithms) or 2", std::to_string(*base));
}

Checks& Checks::state(const char* arg, const View& t, std::initializer_list<int64_t> sizes) {
  return t.defined() ? activation(arg, t, sizes, {DType::fp32, DType::bf16, DType::fp16}) : *this;
}

Checks& Checks::pool(const char* arg, const View& t, std::initializer_list<int64_t> sizes,
                     std::initializer_list<DType> allowed) {
  shape(arg, t, sizes).dtype(arg, t, allowed).device(arg, t).no_grad(arg, t);
  if (t.dim != static_cast<int64_t>(sizes.size())) return *this;
  int64_t step = 1;
  bool dense = true;
  for (int64_t d = t.dim - 1; d > 0; --d) {
    dense = dense && (t.sizes[d] <= 1 || t.strides[d] == step);
    step *= t.sizes[d];
  }
  if (dense && (t.sizes[0] <= 1 || t.strides[0] >= step)) return *this;
  return fail(arg, "contiguous slots (they are never copied)", t.layout());
}

Checks& Checks::out(const char* arg, const View& t, std::initializer_list<int64_t> sizes, DType dtype, int64_t inner) {
  View shape;
  shape.dim = static_cast<int64_t>(sizes.size()), shape.sizes = sizes.begin();
  return out_like(arg, t, shape, dtype, inner);
}

Checks& Checks::out_like(const char* arg, const View& t, const View& shape, DType dtype, int64_t inner) {
  if (!t.defined()) return *this;
  this->dtype(arg, t, {dtype}).device(arg, t).no_grad(arg, t);
  if (t.dim != shape.dim || !std::equal(t.sizes, t.sizes + t.dim, shape.sizes))
    return fail(arg, "the shape of the result, " + shape.shape(), t.shape());
  int64_t step = 1, row = 0;  // what the next dimension's stride has to be, and elements of a row
  bool even = true;
  for (int64_t d = t.dim - 1; d >= 0; --d) {
    if (d == t.dim - 1 - inner) row = step;
    if (t.sizes[d] == 1) continue;
    if (inner > 0 && step == row && t.strides[d] >= row) step = t.strides[d];  // of rows: any that keeps them apart
    even = even && t.strides[d] == step;
    step *= t.sizes[d];
  }
  if (t.numel() == 0 || (even && (inner > 0 || reinterpret_cast<uintptr_t>(t.data) % 16 == 0))) return *this;
  return fail(arg, inner > 0 ? "contiguous rows, evenly apart" : "contiguous memory on 16 bytes",
              even ? "another address" : t.layout());
}

Checks& Checks::cu_seqlens(const View& t, int64_t B) {
  if (!t.defined()) return *this;
  index("cu_seqlens", t, {-1});
  that(t.dim != 1 || t.sizes[0] >= 1, "cu_seqlens", "N + 1 entries", t);
  return B == 1 ? *this : fail("cu_seqlens", "B = 1 (packed tokens) with it", "B = " + std::to_string(B));
}

Checks& Checks::heads(int64_t H, int64_t HV) {
  if (H >= 1 && HV >= 1 && HV % H == 0) return *this;
  return fail("HV", "a multiple of H = " + std::to_string(H) + " heads", std::to_string(HV));
}

Checks& Checks::head_size(const char* letter, int64_t size) {
  return that(size >= 1 && size <= 256, letter, "a head size of 1 to 256", size);
}

Checks& Checks::chunk_size(int64_t size) {
  return that(size == 16 || size == 32 || size == 64, "chunk_size", "16, 32 or 64", size);
}

void Checks::done() const {
  if (!text_.empty()) throw std::runtime_error(std::string("gdn.") + op_ + ": " + text_);
}

}  // namespace gdn
