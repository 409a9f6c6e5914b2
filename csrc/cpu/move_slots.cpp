#include <cstring>

#include "chunk.h"
#include "gen/kernels.h"

namespace gdn::cpu {

namespace {

int64_t index_at(const IndexArg& t, int64_t words) {
  const int64_t low = t.low[words];
  return t.words == 2 ? static_cast<int64_t>(t.high[words]) << 32 | static_cast<uint32_t>(low) : low;
}

SlotMove find_move(const MoveSlotsArgs& a, int64_t n, int64_t m) {
  SlotMove x{n, 0, n * a.M + m, a.mask == nullptr || a.mask[n * a.mask_stride] != 0};
  if (a.from_index.words) x.from = index_at(a.from_index, n * a.from_index.stride);
  if (a.to_index.words) x.to = index_at(a.to_index, n * a.to_index.stride + m * a.to_index_column);
  if (a.accepted.words) x.step = index_at(a.accepted, n * a.accepted.stride) - 1;
  auto inside = [](int64_t row, const SlotsArg& side) { return row >= side.min_row && row < side.rows; };
  if (a.from.data != nullptr && !inside(x.from, a.from)) x.moves = false;
  if (!inside(x.to, a.to) || x.step < 0 || x.step >= a.steps) x.moves = false;
  if (a.in_place && x.from == x.to) x.moves = false;
  return x;
}

float load(const char* p, int32_t dtype) {
  if (dtype == kFP32) return *reinterpret_cast<const float*>(p);
  return dtype == kBF16 ? *reinterpret_cast<const bf16*>(p) : *reinterpret_cast<const fp16*>(p);
}

void store(char* p, int32_t dtype, float x) {
  if (dtype == kFP32)
    *reinterpret_cast<float*>(p) = x;
  else if (dtype == kBF16)
    *reinterpret_cast<bf16*>(p) = round_to<bf16>(x);
  else
    *reinterpret_cast<fp16*>(p) = round_to<fp16>(x);
}

// One unit, or zeros from null.
void move_unit(const MoveSlotsArgs& a, const char* from, char* to) {
  auto size = [](int32_t dtype) { return dtype == kFP32 ? 4 : 2; };
  if (a.unit != 0) {
    from != nullptr ? std::memcpy(to, from, a.unit) : std::memset(to, 0, a.unit);
    return;
  }
  for (int e = 0; e < a.vec; ++e)
    store(to + e * size(a.to_dtype), a.to_dtype,
          from != nullptr ? load(from + e * size(a.from_dtype), a.from_dtype) : 0);
}

}  // namespace

void move_slots(const kernels::move_slots::Keys&, const kernels::move_slots::Args& a) {
  parallel(a.N * a.M * a.L, a.units, [&](int64_t item) {
    const int64_t row = item / a.L, layer = item % a.L;
    const SlotMove move = find_move(a, row / a.M, row % a.M);
    if (!move.moves && !a.zero_others) return;
    const char* from = nullptr;
    if (move.moves && a.from.data != nullptr)
      from = static_cast<const char*>(a.from.data) + layer * a.from.layer_stride + move.from * a.from.row_stride +
             move.step * a.from.step_stride;
    char* to = static_cast<char*>(const_cast<void*>(a.to.data)) + layer * a.to.layer_stride + move.to * a.to.row_stride;
    for (int64_t i = 0; i < a.units; ++i) {
      int64_t left = i, at_from = 0, at_to = 0;
      for (int d = a.dims - 1; d >= 0; --d) {
        const int64_t at = left % a.sizes[d];
        at_from += at * a.from.strides[d], at_to += at * a.to.strides[d];
        left /= a.sizes[d];
      }
      move_unit(a, from != nullptr ? from + at_from : nullptr, to + at_to);
    }
  });
}

}  // namespace gdn::cpu
