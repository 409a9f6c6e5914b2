// Moves whole slots: to[l, t_n] = from[l, f_n (, accepted_n - 1)] for all layers l and rows n in one launch, or zeros.
//
// A block moves THREADS * U units of one layer of one row; which row, layer and slots is worked out once a block. Units
// are 16 bytes where both sides allow it (contiguous runs on 16 bytes, one dtype), else smaller, down to an element; a
// slot is up to four nested runs of them, so channel-last and sliced pools need no path of their own. Rows whose slot
// is outside of its pool are left alone, or zeros in a gather; nothing is read for them.
//
// Compiles for the CPU with tests/emulated_warp.h.
#include "move_slots.h"

namespace gdn {

__device__ __forceinline__ int64_t index_at(const IndexArg& t, int64_t words) {
  return index_value({load_word(t.low + words), load_word(t.high + words)}, t.words);
}

__device__ __forceinline__ SlotMove find_move(const MoveSlotsArgs& a, int64_t n, int64_t m) {
  SlotMove x{n, 0, n * a.M + m, a.mask == nullptr || a.mask[n * a.mask_stride] != 0};
  if (a.from_index.words) x.from = index_at(a.from_index, n * a.from_index.stride);
  if (a.to_index.words) x.to = index_at(a.to_index, n * a.to_index.stride + m * a.to_index_column);
  if (a.accepted.words) x.step = index_at(a.accepted, n * a.accepted.stride) - 1;
  const bool from = a.from.data == nullptr || (x.from >= a.from.min_row && x.from < a.from.rows);
  const bool to = x.to >= a.to.min_row && x.to < a.to.rows;
  x.moves = x.moves && from && to && x.step >= 0 && x.step < a.steps && !(a.in_place && x.from == x.to);
  return x;
}

// Byte offsets of unit i of a slot on both sides.
__device__ __forceinline__ void locate(const MoveSlotsArgs& a, uint32_t i, int64_t& from, int64_t& to) {
  from = 0, to = 0;
#pragma unroll 1
  for (int d = a.dims - 1; d > 0; --d) {
    const uint32_t next = divide(i, a.divisors[d]), at = i - next * a.sizes[d];
    from += at * a.from.strides[d], to += at * a.to.strides[d];
    i = next;
  }
  from += i * a.from.strides[0], to += i * a.to.strides[0];
}

// ---- units as they are -----------------------------------------------------------------------------------------

template <class Unit, int THREADS, int U>
__device__ __forceinline__ void copy_units(const MoveSlotsArgs& a, const char* from, char* to, uint32_t first) {
  Unit x[U] = {};
  int64_t target[U];
  const uint32_t units = a.units;
#pragma unroll
  for (int u = 0; u < U; ++u) {
    const uint32_t i = first + u * THREADS;
    int64_t source;
    locate(a, i, source, target[u]);
    if (i < units && from != nullptr) x[u] = *reinterpret_cast<const Unit*>(from + source);
  }
#pragma unroll
  for (int u = 0; u < U; ++u)
    if (first + u * THREADS < units) *reinterpret_cast<Unit*>(to + target[u]) = x[u];
}

// ---- elements that change dtype --------------------------------------------------------------------------------

__device__ __forceinline__ void load4(const void* p, int32_t dtype, float (&x)[4]) {
  uint32_t bits[4];
  if (dtype == kFP32) {
    const uint4 v = *static_cast<const uint4*>(p);
    bits[0] = v.x, bits[1] = v.y, bits[2] = v.z, bits[3] = v.w;
  } else {
    const uint64_t v = *static_cast<const uint64_t*>(p);
#pragma unroll
    for (int e = 0; e < 4; ++e) bits[e] = static_cast<uint32_t>(v >> (16 * e)) & 0xffff;
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) x[e] = bits_value(bits[e], dtype);
}

__device__ __forceinline__ void store4(void* p, int32_t dtype, const float (&x)[4]) {
  if (dtype == kFP32) {
    *static_cast<uint4*>(p) =
        make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3]));
  } else {
    const bool bf = dtype == kBF16;
    const uint64_t low = bf ? Number<bf16>::pack(x[0], x[1]) : Number<fp16>::pack(x[0], x[1]);
    const uint64_t high = bf ? Number<bf16>::pack(x[2], x[3]) : Number<fp16>::pack(x[2], x[3]);
    *static_cast<uint64_t*>(p) = low | high << 32;
  }
}

template <int VEC, int THREADS, int U>
__device__ __forceinline__ void cast_units(const MoveSlotsArgs& a, const char* from, char* to, uint32_t first) {
  float x[U][4] = {};
  int64_t target[U];
  const uint32_t units = a.units;
#pragma unroll
  for (int u = 0; u < U; ++u) {
    const uint32_t i = first + u * THREADS;
    int64_t source;
    locate(a, i, source, target[u]);
    if (i >= units || from == nullptr) continue;
    if constexpr (VEC == 4)
      load4(from + source, a.from_dtype, x[u]);
    else
      x[u][0] = bits_value(load_bits(from + source, 0, a.from_dtype), a.from_dtype);
  }
#pragma unroll
  for (int u = 0; u < U; ++u) {
    if (first + u * THREADS >= units) continue;
    if constexpr (VEC == 4)
      store4(to + target[u], a.to_dtype, x[u]);
    else
      store_rounded(to + target[u], 0, x[u][0], a.to_dtype);
  }
}

// ---- the kernel ------------------------------------------------------------------------------------------------

template <int THREADS, int U>
__device__ __forceinline__ void move_slots(const MoveSlotsArgs& a) {
#pragma unroll 1
  for (int64_t item = blockIdx.x; item < a.items; item += a.programs) {
    const int64_t part = item / a.blocks, row = part / a.L, layer = part - row * a.L, n = row / a.M;
    const SlotMove move = find_move(a, n, row - n * a.M);
    if (!move.moves && !a.zero_others) continue;
    const char* from = nullptr;
    if (move.moves && a.from.data != nullptr)
      from = static_cast<const char*>(a.from.data) + layer * a.from.layer_stride + move.from * a.from.row_stride +
             move.step * a.from.step_stride;
    char* to = static_cast<char*>(const_cast<void*>(a.to.data)) + layer * a.to.layer_stride + move.to * a.to.row_stride;
    const uint32_t first = static_cast<uint32_t>(item - part * a.blocks) * (THREADS * U) + threadIdx.x;
    switch (a.unit) {
      case 16: copy_units<uint4, THREADS, U>(a, from, to, first); break;
      case 8: copy_units<uint64_t, THREADS, U>(a, from, to, first); break;
      case 4: copy_units<uint32_t, THREADS, U>(a, from, to, first); break;
      case 2: copy_units<uint16_t, THREADS, U>(a, from, to, first); break;
      case 1: copy_units<uint8_t, THREADS, U>(a, from, to, first); break;
      default:
        if (a.vec == 4)
          cast_units<4, THREADS, U>(a, from, to, first);
        else
          cast_units<1, THREADS, U>(a, from, to, first);
    }
  }
}

}  // namespace gdn

#define GDN_KERNEL(symbol, THREADS, U)                                                                         \
  extern "C" __global__ void __launch_bounds__(THREADS) symbol(const __grid_constant__ gdn::MoveSlotsArgs a) { \
    gdn::move_slots<THREADS, U>(a);                                                                            \
  }
GDN_VARIANTS(GDN_KERNEL)
