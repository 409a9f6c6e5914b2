// What lies between the launches of a composite op: parts of one allocation.
#pragma once

#include <algorithm>

#include "view.h"

namespace gdn {

// Parts are asked for first, each starts on 16 bytes; then there is one allocation, in bytes or in a wider dtype.
class Workspace {
 public:
  // Offset in bytes of a part of so many bytes.
  int64_t add(int64_t bytes) {
    const int64_t at = bytes_;
    bytes_ += (bytes + 15) / 16 * 16;
    return at;
  }
  Tensor allocate(DType dtype, Device device) const { return empty({bytes_ / element_size(dtype)}, dtype, device); }

 private:
  int64_t bytes_ = 0;
};

// A contiguous tensor at a byte of another's memory, with sizes of its own. Borrowed like every View, so not copied.
struct Part : View {
  Part(const View& memory, int64_t at, std::initializer_list<int64_t> shape, DType as) : View(memory) {
    data = static_cast<char*>(memory.data) + at;
    dim = static_cast<int64_t>(shape.size()), dtype = as;
    std::copy(shape.begin(), shape.end(), own_sizes_);
    for (int64_t d = dim - 1, step = 1; d >= 0; step *= own_sizes_[d--]) own_strides_[d] = step;
    sizes = own_sizes_, strides = own_strides_;
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

 private:
  int64_t own_sizes_[4], own_strides_[4];
};

}  // namespace gdn
