// Runs CUDA C++ kernels on the CPU, one thread block at a time: compiled before a kernel's source by tests/emulated.py.
//
// Each thread is a fiber. A shuffle leaves the lane's value where others find it and lets the next lane run, so that
// all lanes of a warp have left theirs when the first one reads. A warp runs until all its lanes are at a barrier or at
// their end, then the next one does; in odd blocks from the last warp and lane to the first, so that a barrier that is
// missing shows. Shared memory is NaN before each block: `__shared__` variables, and the dynamic part, which is
// `extern __shared__ uint4 dynamic_shared[];` in namespace gdn.
// Also checked: that lanes which exchange values are at the same shuffle, that every thread of a block arrives at a
// barrier, that nothing is written behind dynamic shared memory, and that 16-byte accesses are aligned. Not here:
// clusters, atomics.
#pragma once

#include <link.h>
#include <setjmp.h>
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
#define __align__(n) alignas(n)
// What a kernel has of these, and nothing else, is the thread-local memory of its library: the block finds it there.
#define __shared__ thread_local

using std::max;
using std::min;

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};
inline Index3 threadIdx, blockIdx, blockDim, gridDim;

struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

namespace gdn {
inline constexpr int kMostShared = 227 << 10, kGuard = 4 << 10;
thread_local uint4 dynamic_shared[(kMostShared + kGuard) / sizeof(uint4)];
}  // namespace gdn

// ---- blocks ----------------------------------------------------------------------------------------------------

struct Block {
  static constexpr int kStack = 256 << 10;
  struct Thread {
    ucontext_t context;
    jmp_buf at;
    std::unique_ptr<char[]> stack;
    uint32_t left[2] = {};  // values of this and of the previous shuffle
    unsigned shuffles = 0, barriers = 0;
    bool started = false, waits = false, done = false;
  };
  Thread threads[1024];
  jmp_buf scheduler;
  int at = 0, n = 0;
  void (*call)(const void* kernel, const void* args) = nullptr;
  const void *kernel = nullptr, *args = nullptr;
  char error[200] = "";

  void fail(const char* text) {
    if (error[0] == 0) std::snprintf(error, sizeof(error), "%s (block %u, thread %d)", text, blockIdx.x, at);
  }

  int lane() const { return at % 32; }
  Thread& in_warp(int lane) { return threads[at / 32 * 32 + lane]; }

  // setjmp and longjmp, as swapcontext makes two system calls each time.
  void pause() {
    if (_setjmp(threads[at].at) == 0) _longjmp(scheduler, 1);
  }

  void resume(int i) {
    Thread& thread = threads[i];
    at = i, threadIdx.x = i;
    if (_setjmp(scheduler)) return;
    if (thread.started) _longjmp(thread.at, 1);
    thread.started = true;
    if (!thread.stack) thread.stack.reset(new char[kStack]);
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get(), thread.context.uc_stack.ss_size = kStack;
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, enter, 0);
    setcontext(&thread.context);
  }

  static void enter();

  uint32_t exchange(uint32_t value, int from) {
    Thread& thread = threads[at];
    const unsigned count = thread.shuffles++;
    thread.left[count % 2] = value;
    pause();
    const Thread& other = in_warp(from);
    if (other.shuffles != count + 1 && other.shuffles != count + 2)
      fail("lanes disagree about the shuffle they are at");
    return other.left[count % 2];
  }

  // Whether f holds for any lane's value.
  template <class F>
  bool any(uint32_t value, F f) {
    const unsigned count = threads[at].shuffles;
    exchange(value, lane());
    bool any = false;
    for (int i = 0; i < 32; ++i) any = any || f(in_warp(i).left[count % 2]);
    return any;
  }

  void barrier() {
    ++threads[at].barriers;
    threads[at].waits = true;
    pause();
  }

  // Lanes of one warp, in turn, until none can go on.
  void run_warp(int first, bool backwards) {
    for (bool any = true; any;) {
      any = false;
      for (int i = 0; i < 32; ++i) {
        const int t = first + (backwards ? 31 - i : i);
        if (threads[t].done || threads[t].waits) continue;
        any = true;
        resume(t);
      }
    }
  }

  void run(bool backwards) {
    for (int t = 0; t < n; ++t) threads[t].shuffles = threads[t].barriers = 0, threads[t].done = false;
    for (int waiting = n; waiting && !error[0];) {
      for (int t = 0; t < n; ++t) threads[t].waits = false;
      for (int w = 0; w < n; w += 32) run_warp(backwards ? n - 32 - w : w, backwards);
      waiting = 0;
      for (int t = 0; t < n; ++t) waiting += threads[t].waits;
      if (waiting && waiting < n) fail("some threads of a block are at a barrier that others never reach");
    }
  }
};

inline Block block_state;

// A fiber runs its thread of one block after another.
inline void Block::enter() {
  Block& b = block_state;
  for (;;) {
    b.call(b.kernel, b.args);
    b.threads[b.at].done = true;
    b.pause();
  }
}

// NaN in all of the library's thread-local memory, of dynamic_shared in its first bytes.
inline void poison_shared(int bytes) {
  auto* dynamic = reinterpret_cast<char*>(gdn::dynamic_shared);
  const auto fill = [](dl_phdr_info* info, size_t, void* data) {
    auto* dynamic = static_cast<char*>(data);
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      if (info->dlpi_phdr[i].p_type != PT_TLS || !info->dlpi_tls_data) continue;
      auto* begin = static_cast<char*>(info->dlpi_tls_data);
      char* end = begin + info->dlpi_phdr[i].p_memsz;
      if (dynamic < begin || dynamic >= end) continue;
      std::memset(begin, 0xff, dynamic - begin);
      char* behind = dynamic + sizeof(gdn::dynamic_shared);
      std::memset(behind, 0xff, end - behind);
    }
    return 0;
  };
  dl_iterate_phdr(fill, dynamic);
  if (bytes) std::memset(dynamic, 0xff, bytes + gdn::kGuard);
}

inline bool guard_intact(int bytes) {
  const auto* guard = reinterpret_cast<const char*>(gdn::dynamic_shared) + bytes;
  return bytes == 0 || std::all_of(guard, guard + gdn::kGuard, [](char x) { return x == '\xff'; });
}

// Runs a kernel that takes one struct. Returns what was wrong, or null.
template <class Args>
const char* emulate(void (*kernel)(Args), long blocks, int threads, int shared, const void* args) {
  Block& b = block_state;
  b.error[0] = 0;
  b.n = threads, blockDim.x = threads, gridDim.x = static_cast<unsigned>(blocks);
  b.kernel = reinterpret_cast<const void*>(kernel), b.args = args;
  b.call = [](const void* kernel, const void* args) {
    reinterpret_cast<void (*)(Args)>(const_cast<void*>(kernel))(*static_cast<const Args*>(args));
  };
  for (Block::Thread& t : b.threads) t.started = false;
  for (long i = 0; i < blocks && !b.error[0]; ++i) {
    blockIdx.x = static_cast<unsigned>(i);
    poison_shared(shared);
    b.run(i % 2);
    if (!guard_intact(shared)) b.fail("a write behind dynamic shared memory");
  }
  return b.error[0] ? b.error : nullptr;
}

inline void __syncthreads() { block_state.barrier(); }
inline void __syncwarp(unsigned = 0xffffffffu) { block_state.exchange(0, block_state.lane()); }

inline bool __any_sync(unsigned, bool value) {
  return block_state.any(value, [](uint32_t x) { return x != 0; });
}
inline bool __all_sync(unsigned, bool value) {
  return !block_state.any(value, [](uint32_t x) { return x == 0; });
}

template <class T>
T exchanged(T value, int from) {
  static_assert(sizeof(T) == 4);
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits = block_state.exchange(bits, from & 31);
  std::memcpy(&value, &bits, 4);
  return value;
}

template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return exchanged(value, block_state.lane() ^ mask);
}
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return exchanged(value, lane);
}
template <class T>
T __shfl_down_sync(unsigned, T value, int delta) {
  const int lane = block_state.lane();
  return exchanged(value, lane + delta < 32 ? lane + delta : lane);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int delta) {
  const int lane = block_state.lane();
  return exchanged(value, lane >= delta ? lane - delta : lane);
}

// ---- memory and numbers ----------------------------------------------------------------------------------------

inline uint4 __ldcs(const uint4* p) {
  if (reinterpret_cast<uintptr_t>(p) % 16) block_state.fail("a 16-byte load is not aligned");
  uint4 x;
  std::memcpy(&x, static_cast<const void*>(p), 16);
  return x;
}
inline void __stcs(uint4* p, uint4 x) {
  if (reinterpret_cast<uintptr_t>(p) % 16) block_state.fail("a 16-byte store is not aligned");
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
