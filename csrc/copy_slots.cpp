#include "gen/ops.h"
#include "move_slots.h"

namespace gdn {

void copy_slots(const Tensor& pool_, const Tensor& src_indices_, const Tensor& dst_indices_, const OptTensor& mask_,
                int64_t min_slot, int64_t slot_dim) {
  // shapes
  const View pool(pool_), src_indices(src_indices_), dst_indices(dst_indices_), mask(mask_);
  const int64_t N = src_indices.size(0), M = dst_indices.dim == 2 ? dst_indices.size(1) : 1;
  const int64_t first = std::max<int64_t>(min_slot, 0);
  const MoveSlots move{.op = "copy_slots",
                       .from_name = "pool",
                       .from = pool,
                       .to_name = "pool",
                       .to = pool,
                       .slot_dim = slot_dim,
                       .from_index = src_indices,
                       .to_index = dst_indices,
                       .mask = mask,
                       .from_min = first,
                       .to_min = first,
                       .in_place = true};

  // checks
  Checks checks("copy_slots");
  MoveSlots::check_pool(checks, "pool", pool, slot_dim, true);
  checks.index("src_indices", src_indices, {-1});
  if (dst_indices.dim == 2)
    checks.index("dst_indices", dst_indices, {N, -1});
  else
    checks.index("dst_indices", dst_indices, {N});
  MoveSlots::check_rows(checks, "mask", mask, N);
  checks.done();

  // launch
  move.launch(pool.device, N, M);
}

}  // namespace gdn
