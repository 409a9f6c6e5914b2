// The registry of compiled kernels and the one way to launch them.
//
// A host function says
//     auto kernel = pick<kernels::l2norm>("l2norm", x.device, {.T = x.dtype, .ALIGNED = true});
//     kernel.launch(ceil_div(rows.R, kernel.tiles.THREADS / 32), {.x = x.data, ...});
// On a CUDA device this finds the cubin compiled for these keys and this GPU, loads it on first use (also while a
// stream is being captured) and launches it on torch's current stream. On the CPU it calls the kernel's CPU twin,
// gdn::cpu::l2norm, with the same keys and arguments. Keys, Args and Tiles are generated from the table and from the
// kernel's own signature (tools/codegen.py).
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "check.h"
#include "view.h"

namespace gdn {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr int kMaxTiles = 4;

// One variant of a kernel compiled for one arch.
struct Cubin {
  const unsigned char* image;
  const char* symbol;
  int threads;
  int shared;  // dynamic shared memory, bytes
  int tiles[kMaxTiles];
};

struct KernelInfo {
  const char* name;
  const char* key_names;  // "T, ALIGNED"
  bool early;  // its blocks may start while the kernel ahead of it still runs, which they wait for themselves
  int n_keys;
  int n_variants;
  const int* keys;              // [n_variants][n_keys]
  const char* const* labels;    // [n_variants], as in list_kernels
  const Cubin* cubins;          // [n_variants][n_archs]
  std::atomic<void*>* handles;  // [kDevices][n_variants], CUfunction
};

// The whole registry, generated.
struct Registry {
  static const KernelInfo* const kernels[];
  static const int n_kernels;
  static const int archs[];
  static const int n_archs;
  static const char* const build_info;  // JSON
};

constexpr int kDevices = 64;

// Index of the variant compiled for `keys`; throws, listing what was built, when there is none.
int find_variant(const char* op, const KernelInfo& kernel, const int* keys);
// For tests: unless 0, the compute capability that GPUs not used yet are taken to have.
extern std::atomic<int> pretended_capability;

// Index into Registry::archs of what runs on a GPU; throws, listing what was built, when nothing does.
int find_arch(const char* op, int device);
// What a GPU's kernels were compiled for (90: sm_90); 0 for the CPU.
inline int compiled_arch(const char* op, Device device) {
  return device.is_cpu() ? 0 : Registry::archs[find_arch(op, device.index)];
}
// Multiprocessors of a GPU; 1 for the CPU.
int multiprocessors(Device device);
// How many blocks later the one starts whose state a block fetches to L2, `bytes` of it: 32 KiB of every
// multiprocessor's are then on their way (docs/performance.md).
inline uint32_t fetch_distance(Device device, int64_t bytes) {
  return static_cast<uint32_t>(std::max<int64_t>((int64_t{multiprocessors(device)} << 15) / bytes, 1));
}
// Loads a variant on a device if it is not there yet.
void* load(const char* op, const KernelInfo& kernel, int variant, int device);
// `cluster` blocks, which `programs` is a multiple of, run side by side; 1: no clusters.
void launch(const char* op, const KernelInfo& kernel, int variant, int arch, int device, int64_t programs, int cluster,
            const void* args, size_t args_size);

// For tests: while set, a launch on the CPU goes to this function first, with the variant and arch a GPU launch would
// take, and to the CPU twin only if it returns 0. Tests use it to run Triton kernels through Triton's interpreter.
using LaunchHook = int (*)(const char* kernel, const char* label, int arch, int64_t programs, const void* args);
extern std::atomic<LaunchHook> launch_hook;

// Whether kernels on this device are CPU twins: a composite op may then take a simpler path than on a GPU.
inline bool runs_cpu_twins(Device device) { return device.is_cpu() && launch_hook.load() == nullptr; }

template <class K>
struct Picked {
  const char* op;
  Device device;
  typename K::Keys keys;
  typename K::Tiles tiles;
  int variant = -1;
  int arch = -1;

  // `programs` blocks in one dimension; none is fine.
  void launch(int64_t programs, const typename K::Args& args, int cluster = 1) const {
    if (programs <= 0) return;
    if (!device.is_cpu()) {
      gdn::launch(op, K::info, variant, arch, device.index, programs, cluster, &args, sizeof(args));
      return;
    }
    const LaunchHook hook = variant < 0 ? nullptr : launch_hook.load();
    if (hook == nullptr || hook(K::info.name, K::info.labels[variant], Registry::archs[arch], programs, &args) == 0)
      K::cpu(keys, args);
  }
};

template <class K>
Picked<K> pick(const char* op, Device device, const typename K::Keys& keys) {
  Picked<K> picked{op, device, keys, {}};
  if (runs_cpu_twins(device)) {
    constexpr int whole[kMaxTiles] = {1, 1, 1, 1};
    picked.tiles = K::tiles(whole);
    return picked;
  }
  static std::atomic<int> last{0};  // a call is mostly like the one before
  const auto packed = K::pack(keys);
  picked.variant = last.load(std::memory_order_relaxed);
  if (!std::equal(packed.begin(), packed.end(), K::info.keys + picked.variant * packed.size())) {
    picked.variant = find_variant(op, K::info, packed.data());
    last.store(picked.variant, std::memory_order_relaxed);
  }
  picked.arch = device.is_cpu() ? 0 : find_arch(op, device.index);
  picked.tiles = K::tiles(K::info.cubins[picked.variant * Registry::n_archs + picked.arch].tiles);
  return picked;
}

}  // namespace gdn
