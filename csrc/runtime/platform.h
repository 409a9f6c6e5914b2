// The process around us: libraries torch has already loaded. Nothing here loads or links anything new.
#pragma once

namespace gdn {

// A handle of an already loaded library (dlopen with RTLD_NOLOAD), or null. Never loads one: torch is loaded with
// local scope, so its symbols are not visible through RTLD_DEFAULT.
void* loaded_library(const char* soname);

// torch's current CUDA stream on a device, as a CUstream.
void* current_stream(int device);

}  // namespace gdn
