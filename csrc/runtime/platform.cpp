#include "platform.h"

#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>

namespace gdn {

void* loaded_library(const char* soname) { return dlopen(soname, RTLD_NOW | RTLD_NOLOAD); }

void* current_stream(int device) {
  using Getter = int (*)(int32_t, void**);
  static const Getter getter = [] {
    void* lib = loaded_library("libtorch_cuda.so");
    return lib ? reinterpret_cast<Getter>(dlsym(lib, "aoti_torch_get_current_cuda_stream")) : nullptr;
  }();
  void* stream = nullptr;
  if (getter == nullptr || getter(device, &stream) != 0)
    throw std::runtime_error("gdn: torch's current CUDA stream is not available (is this a CUDA build of torch?)");
  return stream;
}

}  // namespace gdn
