// Arguments of the kernel that moves states between slots (move_slots.cu), as host, CPU twin and device see them.
#pragma once

#include "common.h"

namespace gdn {

// One side of a move: strides in bytes. A slot (and its step) of one layer is at
// data + layer * layer_stride + row * row_stride (+ step * step_stride), and holds nested runs of units.
struct SlotsArg {
  const void* data;
  int64_t layer_stride, row_stride, step_stride;
  int64_t strides[4];  // of a unit along each run, outermost first
  int64_t min_row, rows;
};

struct MoveSlotsArgs {
  SlotsArg from;  // data null: zeros
  SlotsArg to;
  IndexArg from_index;      // [N] rows of `from`; words 0: row n
  IndexArg to_index;        // [N, M] rows of `to`; words 0: row n
  int64_t to_index_column;  // words from one of the M to the next
  IndexArg accepted;        // [N]: step accepted - 1 of `from`; words 0: it has no steps
  const uint8_t* mask;      // [N] flags, stride apart; null: all set
  int64_t mask_stride;
  int64_t N, M, L;                  // rows, copies of each, layers
  int64_t steps;                    // steps of `from`
  int64_t items, blocks, programs;  // blocks of a layer of a row; items = N * M * L * blocks over so many programs
  int32_t sizes[4];                 // units of each run
  Divisor divisors[4];              // by them
  int32_t dims, units;              // runs, at least one; units = product of sizes
  int32_t unit;                     // bytes of a unit: 16, 8, 4, 2 or 1 copied as they are; 0: `vec` elements, cast
  int32_t vec;                      // 4 or 1
  int32_t from_dtype, to_dtype;
  int32_t in_place;     // flag: both sides are one tensor, so a row moved onto itself is left alone
  int32_t zero_others;  // flag: rows that are not moved are zeros, instead of left alone
};

// A row n of the call, its copy m: where it comes from and goes to.
struct SlotMove {
  int64_t from, step, to;
  bool moves;  // false: padding, masked, or nothing to do
};

}  // namespace gdn
