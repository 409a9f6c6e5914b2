#include "driver.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <mutex>
#include <stdexcept>

namespace gdn {

namespace {

constexpr int kMaxDevices = 64;

void check(const Driver& d, CUresult result, const char* call) {
  if (result != CUDA_SUCCESS) throw std::runtime_error(std::string("gdn: ") + call + ": " + d.message(result));
}

Driver open_driver() {
  void* lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (lib == nullptr) throw std::runtime_error("gdn: no CUDA driver: libcuda.so.1 could not be loaded");
  using GetProc = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
  auto get_proc = reinterpret_cast<GetProc>(dlsym(lib, "cuGetProcAddress_v2"));
  if (get_proc == nullptr) throw std::runtime_error("gdn: the CUDA driver is older than 12.0");

  Driver d{};
  auto load = [&](auto& slot, const char* symbol) {
    void* fn = nullptr;
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
    if (get_proc(symbol, &fn, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &found) != CUDA_SUCCESS || fn == nullptr)
      throw std::runtime_error(std::string("gdn: the CUDA driver lacks ") + symbol + " (12.0 or newer is needed)");
    slot = reinterpret_cast<std::remove_reference_t<decltype(slot)>>(fn);
  };
#define GDN_LOAD(name) load(d.name, "cu" #name)
  GDN_LOAD(Init);
  GDN_LOAD(DriverGetVersion);
  GDN_LOAD(GetErrorName);
  GDN_LOAD(GetErrorString);
  GDN_LOAD(DeviceGet);
  GDN_LOAD(DeviceGetCount);
  GDN_LOAD(DeviceGetName);
  GDN_LOAD(DeviceGetAttribute);
  GDN_LOAD(DevicePrimaryCtxRetain);
  GDN_LOAD(CtxGetCurrent);
  GDN_LOAD(CtxPushCurrent);
  GDN_LOAD(CtxPopCurrent);
  GDN_LOAD(ThreadExchangeStreamCaptureMode);
  GDN_LOAD(LibraryLoadData);
  GDN_LOAD(LibraryGetKernel);
  GDN_LOAD(KernelGetFunction);
  GDN_LOAD(KernelSetAttribute);
  GDN_LOAD(LaunchKernelEx);
#undef GDN_LOAD
  const CUresult result = d.Init(0);
  if (result == CUDA_ERROR_NO_DEVICE) throw std::runtime_error("gdn: no CUDA device");
  check(d, result, "cuInit");
  return d;
}

}  // namespace

std::string Driver::message(CUresult result) const {
  const char *name = nullptr, *text = nullptr;
  GetErrorName(result, &name);
  GetErrorString(result, &text);
  return std::string(name ? name : "unknown error") + ": " + (text ? text : std::to_string(result));
}

const Driver& driver() {
  static const Driver d = open_driver();
  return d;
}

const DeviceInfo& device_info(int index) {
  static std::array<std::atomic<const DeviceInfo*>, kMaxDevices> cache{};
  static std::mutex lock;
  if (index < 0 || index >= kMaxDevices) throw std::runtime_error("gdn: no CUDA device " + std::to_string(index));
  if (const DeviceInfo* info = cache[index].load(std::memory_order_acquire)) return *info;

  const Driver& d = driver();
  std::lock_guard<std::mutex> guard(lock);
  if (const DeviceInfo* info = cache[index].load(std::memory_order_acquire)) return *info;
  DeviceInfo info{};
  int major = 0, minor = 0;
  check(d, d.DeviceGet(&info.device, index), "cuDeviceGet");
  check(d, d.DeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, info.device), "capability");
  check(d, d.DeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, info.device), "capability");
  check(d, d.DeviceGetAttribute(&info.multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, info.device),
        "multiprocessors");
  check(d, d.DevicePrimaryCtxRetain(&info.context, info.device), "cuDevicePrimaryCtxRetain");
  info.capability = 10 * major + minor;
  cache[index].store(new DeviceInfo(info), std::memory_order_release);  // kept for the life of the process
  return *cache[index].load(std::memory_order_relaxed);
}

ContextGuard::ContextGuard(const DeviceInfo& info) {
  const Driver& d = driver();
  CUcontext current = nullptr;
  check(d, d.CtxGetCurrent(&current), "cuCtxGetCurrent");
  if (current == info.context) return;
  check(d, d.CtxPushCurrent(info.context), "cuCtxPushCurrent");
  pushed_ = true;
}

ContextGuard::~ContextGuard() {
  CUcontext popped = nullptr;
  if (pushed_) driver().CtxPopCurrent(&popped);
}

}  // namespace gdn
