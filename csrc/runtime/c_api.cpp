#include "c_api.h"

#include <string>

#include "driver.h"
#include "kernel.h"

using namespace gdn;

namespace {

thread_local std::string text;

template <class F>
const char* guarded(F&& f) {
  try {
    f();
    return nullptr;
  } catch (const std::exception& e) {
    text = e.what();
    return text.c_str();
  }
}

}  // namespace

const char* gdn_build_info() { return Registry::build_info; }

const char* gdn_warmup(int device) {
  return guarded([&] {
    for (int k = 0; k < Registry::n_kernels; ++k)
      for (int v = 0; v < Registry::kernels[k]->n_variants; ++v) load("warmup", *Registry::kernels[k], v, device);
  });
}

const char* gdn_arch(int device) {
  const char* error = guarded([&] { text = "sm_" + std::to_string(Registry::archs[find_arch("arch", device)]); });
  return error != nullptr ? error : text.c_str();
}

int gdn_driver_version() {
  int version = 0;
  guarded([&] { driver().DriverGetVersion(&version); });
  return version;
}

const char* gdn_find_variant(const char* kernel, const int* keys) {
  const char* error = guarded([&] {
    for (int k = 0; k < Registry::n_kernels; ++k)
      if (std::string(Registry::kernels[k]->name) == kernel) {
        text = Registry::kernels[k]->labels[find_variant("find_variant", *Registry::kernels[k], keys)];
        return;
      }
    text = std::string("no kernel ") + kernel;
  });
  return error != nullptr ? error : text.c_str();
}

void gdn_set_launch_hook(int (*hook)(const char*, const char*, int, long, const void*)) { launch_hook.store(hook); }

void gdn_pretend_capability(int capability) { pretended_capability.store(capability); }
