#include "gen/ops.h"
#include "move_slots.h"

namespace gdn {

void scatter_states(const Tensor& pool_, const Tensor& states_, const Tensor& indices_, const OptTensor& mask_,
                    int64_t min_slot, int64_t slot_dim) {
  // shapes
  const View pool(pool_), states(states_), indices(indices_), mask(mask_);
  const int64_t N = indices.size(0);
  const MoveSlots move{.op = "scatter_states",
                       .from_name = "states",
                       .from = states,
                       .to_name = "pool",
                       .to = pool,
                       .slot_dim = slot_dim,
                       .to_index = indices,
                       .mask = mask,
                       .to_min = std::max<int64_t>(min_slot, 0)};

  // checks
  Checks checks("scatter_states");
  MoveSlots::check_pool(checks, "pool", pool, slot_dim, true);
  MoveSlots::check_pool(checks, "states", states, slot_dim, false);
  move.check_slots(checks);
  checks.index("indices", indices, {-1})
      .that(indices.dim != 1 || states.size(slot_dim) == N, "states", "a state for every index", states);
  MoveSlots::check_rows(checks, "mask", mask, N);
  checks.done();

  // launch
  move.launch(pool.device, N);
}

}  // namespace gdn
