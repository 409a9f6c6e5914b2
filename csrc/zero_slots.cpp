#include "gen/ops.h"
#include "move_slots.h"

namespace gdn {

void zero_slots(const Tensor& pool_, const Tensor& indices_, const OptTensor& mask_, int64_t min_slot,
                int64_t slot_dim) {
  // shapes
  const View pool(pool_), indices(indices_), mask(mask_);
  const int64_t N = indices.size(0);
  const MoveSlots move{.op = "zero_slots",
                       .from_name = "",
                       .from = {},
                       .to_name = "pool",
                       .to = pool,
                       .slot_dim = slot_dim,
                       .to_index = indices,
                       .mask = mask,
                       .to_min = std::max<int64_t>(min_slot, 0)};

  // checks
  Checks checks("zero_slots");
  MoveSlots::check_pool(checks, "pool", pool, slot_dim, true);
  checks.index("indices", indices, {-1});
  MoveSlots::check_rows(checks, "mask", mask, N);
  checks.done();

  // launch
  move.launch(pool.device, N);
}

}  // namespace gdn
