// What the ops on pools of slots share: the checks of their common arguments, and the one launch.
#pragma once

#include <algorithm>
#include <array>

#include "gen/kernels.h"
#include "runtime/args.h"

namespace gdn {

// A call: `from` [L, rows, (steps,) ...] to `to` [L, rows, ...], without L where slot_dim is 0.
struct MoveSlots {
  const char* op;
  const char* from_name;
  View from;  // absent: zeros
  const char* to_name;
  View to;
  int64_t slot_dim;
  View from_index{}, to_index{}, accepted{}, mask{};
  int64_t from_min = 0, to_min = 0;
  bool in_place = false, zero_others = false;  // as in MoveSlotsArgs

  bool stepped() const { return accepted.defined(); }
  // The pool `t`, updated in place if `written`: rank, dtype, device, an element for every index.
  static void check_pool(Checks& checks, const char* name, const View& t, int64_t slot_dim, bool written);
  // The slot sizes of `from` and `to` are one.
  void check_slots(Checks& checks) const;
  // Optional flags of N rows.
  static void check_rows(Checks& checks, const char* name, const View& t, int64_t N);
  void launch(Device device, int64_t N, int64_t M = 1) const;
};

inline void check_slot_dim(Checks& checks, int64_t slot_dim) {
  checks.that(slot_dim == 0 || slot_dim == 1, "slot_dim", "1 ([L, slots, ...]) or 0 ([slots, ...])", slot_dim);
}

inline void MoveSlots::check_pool(Checks& checks, const char* name, const View& t, int64_t slot_dim, bool written) {
  check_slot_dim(checks, slot_dim);
  bool shared = false;
  for (int64_t d = 0; d < t.dim; ++d) shared = shared || (t.sizes[d] > 1 && t.strides[d] == 0);
  checks.that(t.defined(), name, "a tensor", "None")
      .that(!t.defined() || (t.dim > slot_dim && t.dim <= slot_dim + 5), name,
            slot_dim == 1 ? "[L, slots, ...] with slots of up to 4 dimensions"
                          : "[slots, ...] with slots of up to 4 dimensions",
            t)
      .that(!written || !shared, name, "an element for every index (it is updated in place)", "stride 0")
      .dtype(name, t, {DType::fp32, DType::bf16, DType::fp16, DType::fp8})
      .device(name, t)
      .no_grad(name, t);
}

inline void MoveSlots::check_slots(Checks& checks) const {
  const int64_t extra = stepped() ? 1 : 0;
  bool same = from.dim == to.dim + extra && (slot_dim == 0 || from.size(0) == to.size(0));
  for (int64_t d = slot_dim + 1; same && d < to.dim; ++d) same = from.sizes[d + extra] == to.sizes[d];
  if (!same && from.defined() && to.defined())
    checks.fail(from_name,
                (stepped() ? "rows of steps of the slots of " : "rows of the slots of ") + std::string(to_name) + " " +
                    to.shape(),
                from.shape());
  checks.that(from.dtype == to.dtype || (from.dtype != DType::fp8 && to.dtype != DType::fp8), from_name,
              "one dtype on both sides where one is fp8 (its scale is not known)", name(from.dtype));
}

inline void MoveSlots::check_rows(Checks& checks, const char* name, const View& t, int64_t N) {
  if (t.defined()) checks.shape(name, t, {N}).dtype(name, t, {DType::b8}).device(name, t);
}

inline void MoveSlots::launch(Device device, int64_t N, int64_t M) const {
  // shapes
  const int64_t extra = stepped() ? 1 : 0, to_size = element_size(to.dtype);
  const View& source = from.defined() ? from : to;
  const int64_t from_size = element_size(source.dtype);
  struct Run {
    int64_t size, from, to;  // strides in bytes
  };
  std::array<Run, 4> runs{};
  int64_t dims = 0;
  for (int64_t d = slot_dim + 1; d < to.dim; ++d)
    if (to.sizes[d] != 1)
      runs[dims++] = {to.sizes[d], source.strides[d + (from.defined() ? extra : 0)] * from_size,
                      to.strides[d] * to_size};
  if (dims == 0) runs[dims++] = {1, from_size, to_size};
  std::stable_sort(runs.begin(), runs.begin() + dims, [](const Run& a, const Run& b) { return a.to > b.to; });
  for (int64_t d = dims - 2; d >= 0; --d) {
    Run &outer = runs[d], &inner = runs[d + 1];
    if (outer.from != inner.size * inner.from || outer.to != inner.size * inner.to) continue;
    outer = {outer.size * inner.size, inner.from, inner.to};
    std::copy(runs.begin() + d + 2, runs.begin() + dims, runs.begin() + d + 1);
    --dims;
  }
  SlotsArg f{.data = from.data,
             .layer_stride = slot_dim ? source.stride(0) * from_size : 0,
             .row_stride = source.stride(slot_dim) * from_size,
             .step_stride = extra ? source.stride(slot_dim + 1) * from_size : 0,
             .strides = {},
             .min_row = from_min,
             .rows = source.size(slot_dim)};
  SlotsArg t{.data = to.data,
             .layer_stride = slot_dim ? to.stride(0) * to_size : 0,
             .row_stride = to.stride(slot_dim) * to_size,
             .step_stride = 0,
             .strides = {},
             .min_row = to_min,
             .rows = to.size(slot_dim)};

  // pick: the largest unit that divides the innermost run and all strides
  Run& last = runs[dims - 1];
  const bool packed = last.from == from_size && last.to == to_size;
  auto fits = [&](int64_t elements) {
    const int64_t a = elements * from_size, b = elements * to_size;
    bool ok = elements == 1 || (packed && last.size % elements == 0);
    auto on = [](const SlotsArg& s, int64_t unit) {
      return reinterpret_cast<uintptr_t>(s.data) % unit == 0 && s.layer_stride % unit == 0 &&
             s.row_stride % unit == 0 && s.step_stride % unit == 0;
    };
    for (int64_t d = 0; d + 1 < dims; ++d) ok = ok && runs[d].from % a == 0 && runs[d].to % b == 0;
    return ok && on(f, a) && on(t, b);
  };
  const bool cast = source.dtype != to.dtype;
  int64_t elements = cast ? 4 : 16 / to_size;
  while (elements > 1 && !fits(elements)) elements = cast ? 1 : elements / 2;
  last = {last.size / elements, last.from * elements, last.to * elements};
  MoveSlotsArgs args{};
  int64_t units = 1;
  for (int64_t d = 0; d < dims; ++d) {
    units *= runs[d].size;
    args.sizes[d] = static_cast<int32_t>(runs[d].size);
    args.divisors[d] = divisor(std::max<int64_t>(runs[d].size, 1));
    f.strides[d] = runs[d].from, t.strides[d] = runs[d].to;
  }
  STD_TORCH_CHECK(units <= INT32_MAX - 65536, "gdn.", op, ": ", to_name, ": expected slots of fewer than 2^31 units");
  const auto kernel = pick<kernels::move_slots>(op, device, {});

  // launch
  args.from = f, args.to = t;
  args.from_index = index_arg(from_index), args.accepted = index_arg(accepted);
  args.to_index = index_arg(to_index);
  args.to_index_column = to_index.dim == 2 ? to_index.stride(1) * args.to_index.words : 0;
  args.mask = static_cast<const uint8_t*>(mask.data), args.mask_stride = mask.stride(0);
  args.N = N, args.M = M, args.L = slot_dim ? to.size(0) : 1;
  args.steps = extra ? source.size(slot_dim + 1) : 1;
  args.blocks = std::max<int64_t>(1, ceil_div(units, int64_t{kernel.tiles.THREADS} * kernel.tiles.U));
  args.items = N * M * args.L * args.blocks;
  args.programs = std::min<int64_t>(args.items, int64_t{1} << 30);
  args.dims = static_cast<int32_t>(dims), args.units = static_cast<int32_t>(units);
  args.unit = cast ? 0 : static_cast<int32_t>(elements * to_size), args.vec = static_cast<int32_t>(elements);
  args.from_dtype = static_cast<int32_t>(source.dtype), args.to_dtype = static_cast<int32_t>(to.dtype);
  args.in_place = in_place, args.zero_others = zero_others;
  if (units > 0) kernel.launch(args.programs, args);
}

}  // namespace gdn
