// What blocks may do side by side, from compute capability 9.0 on: programmatic dependent launch, for kernels whose row
// of gdn_ops/kernels.py says `early`, and clusters.
#pragma once

#include "common.h"

namespace gdn {

// Until every kernel ahead in the stream has finished and its writes are seen. Before this, nothing may be written, and
// nothing read that another kernel could write.
__device__ __forceinline__ void wait_for_kernel_ahead() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the blocks of the kernel behind be placed as soon as all of this one's have been.
__device__ __forceinline__ void let_next_kernel_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Both, as every `early` kernel begins once it has done what it may before.
__device__ __forceinline__ void follow_kernel_ahead() {
  wait_for_kernel_ahead();
  let_next_kernel_start();
}

// A barrier of the blocks of a cluster in two halves: what a thread wrote to shared or global memory before it arrived
// is seen by those that waited.
__device__ __forceinline__ void cluster_arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

// The same for what a thread has read.
__device__ __forceinline__ void cluster_arrive_relaxed() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// A number in the shared memory of another block of the cluster, at the same place as `x` in this one's.
__device__ __forceinline__ float of_block(const float* x, uint32_t block) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t at;
  float value;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(x)), "r"(block));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(at) : "memory");
  return value;
#else
  return *x;
#endif
}

}  // namespace gdn
