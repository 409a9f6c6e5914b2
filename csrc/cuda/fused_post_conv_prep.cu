// q, k [T, H, K] (normalised), v [T, HV, V], g and beta [T, HV] from the rows [q | k | v] that the convolution left and
// the gates' inputs, in one launch:
//   q, k <- x * rsqrt(sum x^2 + 1e-6);  g = -exp(A_log) softplus(a + dt_bias);  beta = sigmoid(b)
//
// ALIGNED (16-byte rows, heads of 2^n lanes): a token is a list of items, each of a lane: 16 bytes of q or k, 16 bytes
// of v, or both gates of a value head. The list is padded to whole warps, so that the lanes of a head sit in one warp
// on a multiple of their number, and warps take items next to each other whatever the model's size. Other variants give
// a warp a head, any K and V up to 256, element by element. Sums in fp32, in one order for every batch.
//
// Compiles for the CPU with tests/emulated_warp.h.
#include "fused_post_conv_prep.h"
#include "packs.h"
#include "warp.h"

namespace gdn {

__device__ __forceinline__ float gate_input(const HeadGateArg& x, const FusedPostConvPrepArgs& a, int64_t t, int hv) {
  const int group = hv / a.r;
  return bits_value(load_bits(x.data, t * x.stride_t + group * x.stride_g + (hv - group * a.r) * x.stride_h, x.dtype),
                    x.dtype);
}

__device__ __forceinline__ void store_gates(const FusedPostConvPrepArgs& a, int64_t t, int hv) {
  const float x = gate_input(a.a, a, t, hv) + gate_input(a.dt_bias, a, 0, hv);
  const float g = -expf(gate_input(a.A_log, a, 0, hv)) * (x > 20.0f ? x : log1pf(expf(x)));
  a.g[t * a.HV + hv] = a.g_linear ? expf(g) : g;
  a.beta[t * a.HV + hv] = 1.0f / (1.0f + expf(-gate_input(a.b, a, t, hv)));
}

__device__ __forceinline__ float norm_factor(float sum) { return rsqrtf(sum + 1e-6f); }

// ---- 16 bytes a lane -------------------------------------------------------------------------------------------

template <class T>
struct Lane : Pack<T, 16 / sizeof(T)> {
  static constexpr int N = 16 / sizeof(T);

  __device__ __forceinline__ void scale(float factor) {
    float x[N];
#pragma unroll
    for (int e = 0; e < N; ++e) x[e] = this->at(e) * factor;
    this->set(x);
  }
};

template <class T, int THREADS, int U>
__device__ __forceinline__ void prepare_lanes(const FusedPostConvPrepArgs& a) {
  using L = Lane<T>;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (THREADS * U), t0 = first / a.items;
  const uint32_t rest = static_cast<uint32_t>(first - t0 * a.items) + threadIdx.x;
  L x[U] = {};
#pragma unroll
  for (int u = 0; u < U; ++u) {
    const uint32_t at = rest + u * THREADS, row = divide(at, a.by_items);
    const int i = static_cast<int>(at - row * a.items);
    if (t0 + row < a.T && i < a.v_end) x[u].load(static_cast<const T*>(a.qkv) + (t0 + row) * a.qkv_stride + i * L::N);
  }
#pragma unroll
  for (int u = 0; u < U; ++u) {
    const uint32_t at = rest + u * THREADS, row = divide(at, a.by_items);
    const int i = static_cast<int>(at - row * a.items);
    const int64_t t = t0 + row;
    if (a.l2norm) {
      float sum = 0;
#pragma unroll
      for (int e = 0; e < L::N; ++e) sum = fmaf(x[u].at(e), x[u].at(e), sum);
#pragma unroll 1
      for (int far = a.lanes / 2; far > 0; far /= 2) sum += __shfl_xor_sync(kAll, sum, far);
      if (i < a.qk_end) x[u].scale(norm_factor(sum));
    }
    if (t >= a.T) continue;
    if (i < a.qk_end) {
      const int k = a.qk_end / 2, half = i >= k;
      x[u].store(static_cast<T*>(half ? a.k : a.q) + (t * k + i - half * k) * L::N);
    } else if (i < a.v_end) {
      x[u].store(static_cast<T*>(a.v) + (t * (a.v_end - a.qk_end) + i - a.qk_end) * L::N);
    }
  }
#pragma unroll 1
  for (int u = 0; u < U; ++u) {
    const uint32_t at = rest + u * THREADS, row = divide(at, a.by_items);
    const int hv = static_cast<int>(at - row * a.items) - a.v_end;
    if (t0 + row < a.T && hv >= 0 && hv < a.HV) store_gates(a, t0 + row, hv);
  }
}

// ---- a warp a head ---------------------------------------------------------------------------------------------

template <class T, int THREADS>
__device__ __forceinline__ void prepare_heads(const FusedPostConvPrepArgs& a) {
  const int lane = threadIdx.x % 32, heads = 2 * a.H + a.HV + (a.HV + 31) / 32;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32, t = item / heads;
  const int head = static_cast<int>(item - t * heads);
  if (t >= a.T) return;
  if (head >= 2 * a.H + a.HV) {
    const int hv = (head - 2 * a.H - a.HV) * 32 + lane;
    if (hv < a.HV) store_gates(a, t, hv);
    return;
  }
  using Bits = typename Number<T>::Bits;
  const bool is_v = head >= 2 * a.H;
  const int width = is_v ? a.V : a.K, hv = head - 2 * a.H, h = head % a.H;
  const Bits* from =
      static_cast<const Bits*>(a.qkv) + t * a.qkv_stride + (is_v ? 2 * a.H * a.K + hv * a.V : head * a.K);
  T* to = static_cast<T*>(is_v ? a.v : head < a.H ? a.q : a.k) + (is_v ? t * a.HV + hv : t * a.H + h) * width;
  float x[8], sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    x[i] = lane + 32 * i < width ? Number<T>::value(from[lane + 32 * i]) : 0.0f;
    sum = fmaf(x[i], x[i], sum);
  }
  sum = warp_sum(sum);
  const bool scales = a.l2norm && !is_v;
  const float factor = norm_factor(sum);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (lane + 32 * i >= width) continue;
    if (scales)
      to[lane + 32 * i] = Number<T>::round(x[i] * factor);
    else
      reinterpret_cast<Bits*>(to)[lane + 32 * i] = from[lane + 32 * i];
  }
}

template <class T, bool ALIGNED, int THREADS, int U>
__device__ __forceinline__ void fused_post_conv_prep(const FusedPostConvPrepArgs& a) {
  if constexpr (ALIGNED)
    prepare_lanes<T, THREADS, U>(a);
  else
    prepare_heads<T, THREADS>(a);
}

}  // namespace gdn

#define GDN_KERNEL(symbol, T, ALIGNED, THREADS, WARPS, U)                                                              \
  extern "C" __global__ void __launch_bounds__(THREADS) symbol(const __grid_constant__ gdn::FusedPostConvPrepArgs a) { \
    gdn::fused_post_conv_prep<T, ALIGNED, THREADS, U>(a);                                                              \
  }
GDN_VARIANTS(GDN_KERNEL)
