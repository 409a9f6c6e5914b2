"""The emulation of CUDA C++ blocks itself: barriers, shuffles and shared memory, and what it must find."""

import ctypes

import emulated
import pytest
import torch

KERNELS = """
#define GDN_NOTHING(...)
struct Args { float* y; };
__device__ inline float warp_sum(float x) {
  for (int far = 16; far; far /= 2) x += __shfl_xor_sync(~0u, x, far);
  return x;
}
// y[block] = the sum of thread numbers, through both kinds of shared memory.
namespace gdn {
extern __shared__ uint4 dynamic_shared[];

template <bool BARRIER> __device__ void sum(Args a) {
  __shared__ float parts[4];
  float* all = reinterpret_cast<float*>(dynamic_shared);
  const float part = warp_sum(threadIdx.x);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = part;
  if (BARRIER) __syncthreads();
  all[threadIdx.x] = parts[threadIdx.x % 4];
  __syncthreads();
  if (threadIdx.x == 0) a.y[blockIdx.x] = all[124] + all[125] + all[126] + all[127];
}
void right(Args a) { sum<true>(a); }
void no_barrier(Args a) { sum<false>(a); }
void half_at_barrier(Args a) { if (threadIdx.x < 64) __syncthreads(); }
void half_at_shuffle(Args a) { if (threadIdx.x % 32 < 16) warp_sum(1); }
void unwritten(Args a) { a.y[blockIdx.x] = __uint_as_float(dynamic_shared[0].x); }
void behind(Args a) { dynamic_shared[128 / 4 + threadIdx.x].x = 0; }
}
using namespace gdn;
GDN_VARIANTS(GDN_NOTHING)
"""
VARIANTS = ["right", "no_barrier", "half_at_barrier", "half_at_shuffle", "unwritten", "behind"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    source = tmp_path_factory.mktemp("emulated") / "kernels.cu"
    source.write_text(KERNELS)
    library = emulated._library(str(source), " ".join(f"X({v})" for v in VARIANTS))

    def call(name, threads=128, blocks=3):
        y = torch.zeros(blocks)
        args = (ctypes.c_void_p * 1)(y.data_ptr())
        error = library.gdn_emulate(name.encode(), blocks, threads, 512, ctypes.addressof(args))
        return y, error and error.decode()

    return call


def test_sum_over_a_block(run):
    for _ in range(2):
        y, error = run("right")
        assert error is None and (y == 127 * 64).all()


def test_missing_barrier_shows(run):
    y, error = run("no_barrier")
    assert error is None and not (y == 127 * 64).all()


def test_shared_memory_is_nan(run):
    y, error = run("unwritten")
    assert error is None and y.isnan().all()


@pytest.mark.parametrize(
    "name,error",
    [
        ("half_at_barrier", "some threads of a block are at a barrier"),
        ("half_at_shuffle", "lanes disagree about the shuffle"),
        ("behind", "a write behind dynamic shared memory (block 0"),
    ],
)
def test_errors(run, name, error):
    assert error in run(name)[1]
    assert run("right")[1] is None  # and the next launch starts afresh
