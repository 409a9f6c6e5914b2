// What Python and tests ask of the library besides its operators, through ctypes. Strings are valid until the same
// thread's next call.
#pragma once

#define GDN_EXPORT extern "C" __attribute__((visibility("default")))

// Versions, archs, kernels and source hashes of the build, as JSON.
GDN_EXPORT const char* gdn_build_info();

// Loads every kernel on a device. Returns an error text, or null.
GDN_EXPORT const char* gdn_warmup(int device);

// What would run on a device: "sm_90", or the refusal an op would give.
GDN_EXPORT const char* gdn_arch(int device);

// The driver's version as 1000 * major + 10 * minor, or 0 without a driver.
GDN_EXPORT int gdn_driver_version();

// The variant a kernel would use for packed keys: its label, or the refusal. Needs no GPU.
GDN_EXPORT const char* gdn_find_variant(const char* kernel, const int* keys);

// For tests: sends CPU launches to a function (see LaunchHook in kernel.h), or back to the CPU twins with null.
GDN_EXPORT void gdn_set_launch_hook(int (*hook)(const char*, const char*, int, long, const void*));

// For tests: the compute capability (75 for sm_75) that GPUs not used yet are taken to have, or the real one with 0.
GDN_EXPORT void gdn_pretend_capability(int capability);
