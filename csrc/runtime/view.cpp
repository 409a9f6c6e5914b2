#include "view.h"

#include <array>
#include <vector>

namespace gdn {

namespace {

DType from_torch(int32_t dtype) {
  static const std::array<int32_t, 8> codes = {aoti_torch_dtype_bfloat16(), aoti_torch_dtype_float16(),
                                               aoti_torch_dtype_float32(),  aoti_torch_dtype_int32(),
                                               aoti_torch_dtype_int64(),    aoti_torch_dtype_bool(),
                                               aoti_torch_dtype_uint8(),    aoti_torch_dtype_float8_e4m3fn()};
  for (size_t i = 0; i < codes.size(); ++i)
    if (codes[i] == dtype) return static_cast<DType>(i);
  return DType::other;
}

int32_t to_torch(DType dtype) {
  switch (dtype) {
    case DType::bf16: return aoti_torch_dtype_bfloat16();
    case DType::fp16: return aoti_torch_dtype_float16();
    case DType::fp32: return aoti_torch_dtype_float32();
    case DType::i32: return aoti_torch_dtype_int32();
    case DType::i64: return aoti_torch_dtype_int64();
    case DType::b8: return aoti_torch_dtype_bool();
    case DType::u8: return aoti_torch_dtype_uint8();
    case DType::fp8: return aoti_torch_dtype_float8_e4m3fn();
    case DType::other: break;
  }
  return aoti_torch_dtype_uint8();
}

Tensor empty_contiguous(const int64_t* sizes, int64_t dim, DType dtype, Device device) {
  constexpr int64_t kMaxDim = 8;
  STD_TORCH_CHECK(dim <= kMaxDim, "gdn: a tensor of ", dim, " dimensions cannot be allocated");
  int64_t strides[kMaxDim];
  int64_t step = 1;
  for (int64_t d = dim - 1; d >= 0; --d) {
    strides[d] = step;
    step *= sizes[d] > 1 ? sizes[d] : 1;
  }
  AtenTensorHandle handle = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(dim, sizes, strides, to_torch(dtype), device.type, device.index, &handle));
  return Tensor(handle);
}

std::string listed(const int64_t* numbers, int64_t count) {
  std::string text = "[";
  for (int64_t i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(numbers[i]);
  return text + "]";
}

}  // namespace

const char* name(DType dtype) {
  constexpr const char* names[] = {"bf16", "fp16",  "fp32",     "int32",        "int64",
                                   "bool", "uint8", "fp8_e4m3", "another dtype"};
  return names[static_cast<int>(dtype)];
}

DType from_scalar_type(ScalarType type) {
  switch (type) {
    case ScalarType::BFloat16: return DType::bf16;
    case ScalarType::Half: return DType::fp16;
    case ScalarType::Float: return DType::fp32;
    case ScalarType::Int: return DType::i32;
    case ScalarType::Long: return DType::i64;
    case ScalarType::Bool: return DType::b8;
    case ScalarType::Float8_e4m3fn: return DType::fp8;
    default: return DType::other;
  }
}

int64_t element_size(DType dtype) {
  constexpr int64_t sizes[] = {2, 2, 4, 4, 8, 1, 1, 1, 1};
  return sizes[static_cast<int>(dtype)];
}

std::string Device::str() const {
  if (is_cpu()) return "cpu";
  if (type == aoti_torch_device_type_cuda()) return "cuda:" + std::to_string(index);
  return "device type " + std::to_string(type);
}

Tensor::Tensor(const Tensor& other) {
  if (other.handle_ != nullptr) STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(other.handle_, &handle_));
}

View::View(const Tensor& tensor) : handle(tensor.get()) {
  int64_t *p_sizes = nullptr, *p_strides = nullptr;
  int32_t torch_dtype = 0;
  bool is_defined = false;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_is_defined(handle, &is_defined));
  if (!is_defined) {  // torch takes None for a Tensor: absent, for the checks to refuse
    handle = nullptr;
    return;
  }
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(handle, &data));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(handle, &dim));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(handle, &p_sizes));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(handle, &p_strides));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(handle, &torch_dtype));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(handle, &device.type));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(handle, &device.index));
  sizes = p_sizes;
  strides = p_strides;
  dtype = from_torch(torch_dtype);
}

int64_t View::numel() const {
  int64_t n = 1;
  for (int64_t d = 0; d < dim; ++d) n *= sizes[d];
  return n;
}

int64_t View::row_stride(int64_t inner) const {
  for (int64_t d = dim - 1 - inner; d >= 0; --d)
    if (sizes[d] > 1) return strides[d];
  return 0;
}

bool View::contiguous() const {
  int64_t step = 1;
  for (int64_t d = dim - 1; d >= 0; --d) {
    if (sizes[d] != 1 && strides[d] != step) return false;
    step *= sizes[d];
  }
  return true;
}

std::string View::shape() const { return sizes != nullptr ? listed(sizes, dim) : "None"; }

std::string View::layout() const { return "strides " + listed(strides, dim); }

Tensor empty(std::initializer_list<int64_t> sizes, DType dtype, Device device) {
  return empty_contiguous(sizes.begin(), static_cast<int64_t>(sizes.size()), dtype, device);
}

Tensor empty_transposed_like(const View& like) {
  constexpr int64_t kMaxDim = 8;
  STD_TORCH_CHECK(like.dim >= 2 && like.dim <= kMaxDim, "gdn: a tensor of ", like.dim,
                  " dimensions cannot be allocated");
  int64_t strides[kMaxDim];
  int64_t step = 1;
  for (int64_t i = 0; i < like.dim; ++i) {
    const int64_t d = i == 0 ? like.dim - 2 : i == 1 ? like.dim - 1 : like.dim - 1 - i;
    strides[d] = step;
    step *= like.sizes[d] > 1 ? like.sizes[d] : 1;
  }
  AtenTensorHandle handle = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(like.dim, like.sizes, strides, to_torch(like.dtype),
                                                         like.device.type, like.device.index, &handle));
  return Tensor(handle);
}

Tensor empty_like(const View& like, DType dtype, int64_t resized, int64_t size) {
  if (resized < 0) return empty_contiguous(like.sizes, like.dim, dtype, like.device);
  std::vector<int64_t> sizes(like.sizes, like.sizes + like.dim);
  sizes[resized] = size;
  return empty_contiguous(sizes.data(), like.dim, dtype, like.device);
}

}  // namespace gdn
