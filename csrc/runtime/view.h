// A tensor's metadata, read once through the C shim: what host functions and kernels work with.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/macros.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>
#include <torch/headeronly/util/shim_utils.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

namespace gdn {

// Owns a reference to a torch tensor. torch::stable::Tensor does so through a shared_ptr, which costs two allocations
// and several atomic operations for every argument of a call; here a move is a pointer.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(AtenTensorHandle handle) : handle_(handle) {}
  Tensor(const Tensor& other);
  Tensor(Tensor&& other) noexcept : handle_(other.release()) {}
  Tensor& operator=(Tensor other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Tensor() {
    if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
  }

  AtenTensorHandle get() const { return handle_; }
  AtenTensorHandle release() { return std::exchange(handle_, nullptr); }

 private:
  AtenTensorHandle handle_ = nullptr;
};

using OptTensor = std::optional<Tensor>;
using torch::headeronly::ScalarType;

enum class DType : int8_t { bf16, fp16, fp32, i32, i64, b8, u8, fp8, other };  // fp8: e4m3fn

const char* name(DType dtype);
DType from_scalar_type(ScalarType type);
int64_t element_size(DType dtype);

struct Device {
  int32_t type = 0;  // aoti_torch_device_type_*
  int32_t index = -1;
  bool is_cpu() const { return type == aoti_torch_device_type_cpu(); }
  bool operator==(const Device& other) const { return type == other.type && (index == other.index || is_cpu()); }
  std::string str() const;
};

// Borrowed: valid while the tensor lives. An absent tensor has defined() false and a null data pointer.
struct View {
  void* data = nullptr;
  int64_t dim = 0;
  const int64_t* sizes = nullptr;
  const int64_t* strides = nullptr;
  DType dtype = DType::other;
  Device device;
  AtenTensorHandle handle = nullptr;

  View() = default;
  explicit View(const Tensor& tensor);
  explicit View(const OptTensor& tensor) : View() {
    if (tensor.has_value()) *this = View(*tensor);
  }

  bool defined() const { return handle != nullptr; }
  // Negative dimensions count from the end; 0 for a dimension the tensor does not have, so that sizes can be
  // read before the rank is checked.
  int64_t size(int64_t d) const { return in(d) ? sizes[d < 0 ? d + dim : d] : 0; }
  int64_t stride(int64_t d) const { return in(d) ? strides[d < 0 ? d + dim : d] : 0; }
  int64_t numel() const;
  bool contiguous() const;
  // From one row of `inner` dimensions to the next, where rows are evenly apart; 0 if there is one.
  int64_t row_stride(int64_t inner) const;
  std::string shape() const;   // "[2, 3]", or "None"
  std::string layout() const;  // "strides [3, 1]"

 private:
  bool in(int64_t d) const { return d < dim && d >= -dim; }
};

// A new contiguous tensor on `device`, uninitialised.
Tensor empty(std::initializer_list<int64_t> sizes, DType dtype, Device device);
// A new contiguous tensor with the shape of `like`, or with dimension `resized` of another size.
Tensor empty_like(const View& like, DType dtype, int64_t resized = -1, int64_t size = 0);
// The same in like's dtype with the last two dimensions swapped in memory: a transposed view of a contiguous tensor.
Tensor empty_transposed_like(const View& like);

// A result: the memory that the op's form .out was given (Checks::out has checked it), or a new contiguous tensor.
inline Tensor result(const OptTensor& out, std::initializer_list<int64_t> sizes, DType dtype, Device device) {
  return out.has_value() ? *out : empty(sizes, dtype, device);
}
inline Tensor result_like(const OptTensor& out, const View& like, DType dtype) {
  return out.has_value() ? *out : empty_like(like, dtype);
}

}  // namespace gdn
