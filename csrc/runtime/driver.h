// The CUDA driver, opened with dlopen on the first CUDA call. The library links neither libcuda nor libcudart.
#pragma once

#include <cuda.h>

#include <string>

namespace gdn {

struct Driver {
  decltype(&cuInit) Init;
  decltype(&cuDriverGetVersion) DriverGetVersion;
  decltype(&cuGetErrorName) GetErrorName;
  decltype(&cuGetErrorString) GetErrorString;
  decltype(&cuDeviceGet) DeviceGet;
  decltype(&cuDeviceGetCount) DeviceGetCount;
  decltype(&cuDeviceGetName) DeviceGetName;
  decltype(&cuDeviceGetAttribute) DeviceGetAttribute;
  decltype(&cuDevicePrimaryCtxRetain) DevicePrimaryCtxRetain;
  decltype(&cuCtxGetCurrent) CtxGetCurrent;
  decltype(&cuCtxPushCurrent) CtxPushCurrent;
  decltype(&cuCtxPopCurrent) CtxPopCurrent;
  decltype(&cuThreadExchangeStreamCaptureMode) ThreadExchangeStreamCaptureMode;
  decltype(&cuLibraryLoadData) LibraryLoadData;
  decltype(&cuLibraryGetKernel) LibraryGetKernel;
  decltype(&cuKernelGetFunction) KernelGetFunction;
  decltype(&cuKernelSetAttribute) KernelSetAttribute;
  decltype(&cuLaunchKernelEx) LaunchKernelEx;

  // "CUDA_ERROR_INVALID_VALUE: invalid argument"
  std::string message(CUresult result) const;
};

// Throws when there is no driver or no device; the text says which.
const Driver& driver();

struct DeviceInfo {
  CUdevice device;
  CUcontext context;  // primary
  int capability;     // 10 * major + minor
  int multiprocessors;
};

// Retains the device's primary context on first use; cached.
const DeviceInfo& device_info(int index);

// Makes a device's primary context current for a scope, and puts back what was there.
class ContextGuard {
 public:
  explicit ContextGuard(const DeviceInfo& info);
  ~ContextGuard();
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  bool pushed_ = false;
};

}  // namespace gdn
