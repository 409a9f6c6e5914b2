// Programmatic dependent launch, for kernels whose row of gdn_ops/kernels.py says `early`.
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

}  // namespace gdn
