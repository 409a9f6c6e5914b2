// Bulk copies, from compute capability 9.0 on: one thread asks for a whole piece of memory, which takes no registers
// and no place among the loads of others. Pieces are multiples of 16 bytes, on 16 bytes.
#pragma once

#include "common.h"

namespace gdn {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr bool kBulk = true;

// By one thread, before others wait: a barrier that one thread arrives at, with the bytes that are to come.
__device__ __forceinline__ void bulk_init(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n\tfence.proxy.async.shared::cta;" ::"r"(shared_address(barrier))
               : "memory");
}

__device__ __forceinline__ void bulk_expect(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void bulk_load(void* to, const void* from, int bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// Until all bytes of the barrier's `phase`, 0 and 1 in turn, are there.
__device__ __forceinline__ void bulk_wait(uint64_t* barrier, uint32_t phase) {
  uint32_t done;
  do {
    asm volatile(
        "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(phase)
        : "memory");
  } while (!done);
}

__device__ __forceinline__ void bulk_prefetch(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
#else
constexpr bool kBulk = false;
inline __device__ void bulk_init(uint64_t*) {}
inline __device__ void bulk_expect(uint64_t*, int) {}
inline __device__ void bulk_load(void*, const void*, int, uint64_t*) {}
inline __device__ void bulk_wait(uint64_t*, uint32_t) {}
inline __device__ void bulk_prefetch(const void*, int) {}
#endif

}  // namespace gdn
