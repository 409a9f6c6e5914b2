#include "kernel.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>

#include "driver.h"
#include "platform.h"

namespace gdn {

namespace {

[[noreturn]] void refuse(const char* op, const std::string& text) {
  throw std::runtime_error(std::string("gdn.") + op + ": " + text);
}

std::string built_archs() {
  std::string text;
  for (int i = 0; i < Registry::n_archs; ++i) text += (i ? ", sm_" : "sm_") + std::to_string(Registry::archs[i]);
  return text;
}

// A cubin runs on its own compute capability and, below 9.0, on later ones of the same major version; from 9.0 on
// Triton compiles arch-specific code (sm_90a), which runs on that capability alone.
int arch_for(int capability) {
  int best = -1;
  for (int i = 0; i < Registry::n_archs; ++i) {
    const int arch = Registry::archs[i];
    const bool runs = arch == capability || (arch < 90 && arch / 10 == capability / 10 && arch < capability);
    if (runs && (best < 0 || arch > Registry::archs[best])) best = i;
  }
  return best;
}

// Programmatic dependent launch: from compute capability 9.0 on, and in graphs with drivers for CUDA 12.3 and later.
bool starts_early(int arch) {
  static const bool driver_can = [] {
    int version = 0;
    return driver().DriverGetVersion(&version) == CUDA_SUCCESS && version >= 12030;
  }();
  return driver_can && Registry::archs[arch] >= 90;
}

// Loading is allowed while this thread captures a stream only in relaxed mode.
class RelaxedCapture {
 public:
  RelaxedCapture() { driver().ThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { driver().ThreadExchangeStreamCaptureMode(&mode_); }

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace

std::atomic<LaunchHook> launch_hook{nullptr};
std::atomic<int> pretended_capability{0};

int find_variant(const char* op, const KernelInfo& kernel, const int* keys) {
  for (int v = 0; v < kernel.n_variants; ++v)
    if (std::equal(keys, keys + kernel.n_keys, kernel.keys + v * kernel.n_keys)) return v;
  std::string got, built;
  for (int k = 0; k < kernel.n_keys; ++k) got += (k ? ", " : "") + std::to_string(keys[k]);
  for (int v = 0; v < kernel.n_variants; ++v) built += std::string(v ? ", " : "") + kernel.labels[v];
  refuse(op, std::string("no variant of ") + kernel.name + " for (" + kernel.key_names + ") = (" + got +
                 "); built: " + built);
}

int find_arch(const char* op, int device) {
  static std::array<std::atomic<int>, kDevices> cache{};  // index + 1
  if (device >= 0 && device < kDevices)
    if (const int cached = cache[device].load(std::memory_order_relaxed)) return cached - 1;
  const int pretended = pretended_capability.load(std::memory_order_relaxed);
  const int capability = pretended != 0 ? pretended : device_info(device).capability;
  const int arch = arch_for(capability);
  if (arch < 0) refuse(op, "this GPU is sm_" + std::to_string(capability) + "; built: " + built_archs());
  cache[device].store(arch + 1, std::memory_order_relaxed);
  return arch;
}

int multiprocessors(Device device) { return device.is_cpu() ? 1 : device_info(device.index).multiprocessors; }

void* load(const char* op, const KernelInfo& kernel, int variant, int device) {
  static std::mutex lock;
  static std::map<const void*, CUlibrary> libraries;  // by image: a CUDA C++ image holds many variants
  std::atomic<void*>& slot = kernel.handles[device * kernel.n_variants + variant];
  if (void* handle = slot.load(std::memory_order_acquire)) return handle;

  const int arch = find_arch(op, device);
  const Cubin& cubin = kernel.cubins[variant * Registry::n_archs + arch];
  const Driver& d = driver();
  const DeviceInfo& info = device_info(device);
  auto check = [&](CUresult result, const char* call) {
    if (result != CUDA_SUCCESS)
      refuse(op, std::string(call) + " of " + kernel.labels[variant] + " for sm_" +
                     std::to_string(Registry::archs[arch]) + ": " + d.message(result));
  };

  std::lock_guard<std::mutex> guard(lock);
  if (void* handle = slot.load(std::memory_order_acquire)) return handle;
  ContextGuard context(info);
  RelaxedCapture relaxed;
  CUlibrary& library = libraries[cubin.image];
  if (library == nullptr)
    check(d.LibraryLoadData(&library, cubin.image, nullptr, nullptr, 0, nullptr, nullptr, 0), "cuLibraryLoadData");
  CUkernel handle = nullptr;
  CUfunction function = nullptr;
  check(d.LibraryGetKernel(&handle, library, cubin.symbol), "cuLibraryGetKernel");
  if (cubin.shared > 0)  // with static shared memory it may be more than 48 KiB
    check(d.KernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, cubin.shared, handle, info.device),
          "cuKernelSetAttribute");
  check(d.KernelGetFunction(&function, handle), "cuKernelGetFunction");
  slot.store(function, std::memory_order_release);
  return function;
}

void launch(const char* op, const KernelInfo& kernel, int variant, int arch, int device, int64_t programs, int cluster,
            const void* args, size_t args_size) {
  if (programs > INT32_MAX) refuse(op, std::to_string(programs) + " programs of " + kernel.name + ": too large a call");
  void* function = load(op, kernel, variant, device);
  const Cubin& cubin = kernel.cubins[variant * Registry::n_archs + arch];
  const Driver& d = driver();
  ContextGuard context(device_info(device));

  CUlaunchConfig config{};
  config.gridDimX = static_cast<unsigned>(programs);
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = static_cast<unsigned>(cubin.threads);
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = static_cast<unsigned>(cubin.shared);
  config.hStream = static_cast<CUstream>(current_stream(device));
  CUlaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (kernel.early && starts_early(arch)) {
    CUlaunchAttribute& early = attributes[config.numAttrs++];
    early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    early.value.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    CUlaunchAttribute& clusters = attributes[config.numAttrs++];
    clusters.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    clusters.value.clusterDim.x = static_cast<unsigned>(cluster);
    clusters.value.clusterDim.y = clusters.value.clusterDim.z = 1;
  }
  // One packed buffer: the struct has the layout of the kernel's parameters, checked when it was built.
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, const_cast<void*>(args), CU_LAUNCH_PARAM_BUFFER_SIZE, &args_size,
                   CU_LAUNCH_PARAM_END};
  const CUresult result = d.LaunchKernelEx(&config, static_cast<CUfunction>(function), nullptr, extra);
  if (result != CUDA_SUCCESS)
    refuse(op, std::string("launch of ") + kernel.labels[variant] + " (" + std::to_string(programs) + " x " +
                   std::to_string(cubin.threads) + " threads, " + std::to_string(cubin.shared) +
                   " bytes of shared memory) failed: " + d.message(result));
}

}  // namespace gdn
