// Runs CUDA C++ kernels on the CPU, one warp at a time: compiled before a kernel's source by tests/emulated.py.
//
// Each lane is a fiber. A shuffle leaves the lane's value where others find it and lets the next lane run, so that all
// lanes of a warp have left theirs when the first one reads. Also checked: that lanes which exchange values are at the
// same shuffle, and that 16-byte accesses are aligned. Not here: shared memory, barriers, atomics.
#pragma once

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>

#define GDN_DEVICE
#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)

using std::max;
using std::min;

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};
inline Index3 threadIdx, blockIdx;

// ---- warps -----------------------------------------------------------------------------------------------------

struct Warp {
  struct Lane {
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[256 << 10]};
    uint32_t left[2] = {};  // values of this and of the previous shuffle
    unsigned shuffles = 0;
    bool done = false;
  };
  Lane lanes[32];
  ucontext_t scheduler;
  int at = 0;
  void (*call)(const void* kernel, const void* args) = nullptr;
  const void *kernel = nullptr, *args = nullptr;
  char error[200] = "";

  void fail(const char* text) {
    if (error[0] == 0) std::snprintf(error, sizeof(error), "%s (block %u, thread %u)", text, blockIdx.x, threadIdx.x);
  }

  uint32_t exchange(uint32_t value, int from) {
    Lane& lane = lanes[at];
    const unsigned count = lane.shuffles++;
    lane.left[count % 2] = value;
    swapcontext(&lane.context, &scheduler);
    const Lane& other = lanes[from & 31];
    if (other.shuffles != count + 1 && other.shuffles != count + 2)
      fail("lanes disagree about the shuffle they are at");
    return other.left[count % 2];
  }

  static void enter();

  void run(unsigned first_thread) {
    for (int i = 0; i < 32; ++i) {
      Lane& lane = lanes[i];
      lane.done = false, lane.shuffles = 0;
      getcontext(&lane.context);
      lane.context.uc_stack.ss_sp = lane.stack.get(), lane.context.uc_stack.ss_size = 256 << 10;
      lane.context.uc_link = &scheduler;
      makecontext(&lane.context, enter, 0);
    }
    for (bool any = true; any;) {
      any = false;
      for (at = 0; at < 32; ++at) {
        if (lanes[at].done) continue;
        any = true;
        threadIdx.x = first_thread + at;
        swapcontext(&scheduler, &lanes[at].context);
      }
    }
  }
};

inline Warp warp_state;

inline void Warp::enter() {
  Warp& w = warp_state;
  w.call(w.kernel, w.args);
  w.lanes[w.at].done = true;
}

// Runs a kernel that takes one struct. Returns what was wrong, or null.
template <class Args>
const char* emulate(void (*kernel)(Args), long blocks, int threads, const void* args) {
  Warp& w = warp_state;
  w.error[0] = 0;
  w.kernel = reinterpret_cast<const void*>(kernel), w.args = args;
  w.call = [](const void* kernel, const void* args) {
    reinterpret_cast<void (*)(Args)>(const_cast<void*>(kernel))(*static_cast<const Args*>(args));
  };
  for (long b = 0; b < blocks; ++b) {
    blockIdx.x = static_cast<unsigned>(b);
    for (int t = 0; t < threads; t += 32) w.run(t);
  }
  return w.error[0] ? w.error : nullptr;
}

inline bool __any_sync(unsigned, bool value) {
  const unsigned count = warp_state.lanes[warp_state.at].shuffles;
  warp_state.exchange(value, warp_state.at);
  bool any = false;
  for (const Warp::Lane& lane : warp_state.lanes) any = any || lane.left[count % 2] != 0;
  return any;
}

template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  static_assert(sizeof(T) == 4);
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits = warp_state.exchange(bits, warp_state.at ^ mask);
  std::memcpy(&value, &bits, 4);
  return value;
}

template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  static_assert(sizeof(T) == 4);
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits = warp_state.exchange(bits, lane);
  std::memcpy(&value, &bits, 4);
  return value;
}

// ---- memory and numbers ----------------------------------------------------------------------------------------

struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

inline uint4 __ldcs(const uint4* p) {
  if (reinterpret_cast<uintptr_t>(p) % 16) warp_state.fail("a 16-byte load is not aligned");
  uint4 x;
  std::memcpy(&x, static_cast<const void*>(p), 16);
  return x;
}
inline void __stcs(uint4* p, uint4 x) {
  if (reinterpret_cast<uintptr_t>(p) % 16) warp_state.fail("a 16-byte store is not aligned");
  std::memcpy(static_cast<void*>(p), &x, 16);
}

inline float __uint_as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline uint32_t __float_as_uint(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }

struct __nv_bfloat16 {
  uint16_t bits;
};
struct __half {
  uint16_t bits;
};
struct __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
struct __half2 {
  __half x, y;
};
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return {torch::headeronly::BFloat16(x).x}; }
inline __half __float2half_rn(float x) { return {torch::headeronly::Half(x).x}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
inline __half __ushort_as_half(uint16_t bits) { return {bits}; }
inline float __half2float(__half x) { return torch::headeronly::Half(x.bits, torch::headeronly::Half::from_bits()); }
