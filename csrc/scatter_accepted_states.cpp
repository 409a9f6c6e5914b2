#include "gen/ops.h"
#include "move_slots.h"

namespace gdn {

void scatter_accepted_states(const Tensor& pool_, const Tensor& intermediate_states_, const Tensor& ssm_indices_,
                             const Tensor& num_accepted_tokens_, const OptTensor& intermediate_indices_,
                             int64_t min_slot, int64_t slot_dim) {
  // shapes
  const View pool(pool_), intermediate_states(intermediate_states_), ssm_indices(ssm_indices_),
      num_accepted_tokens(num_accepted_tokens_), intermediate_indices(intermediate_indices_);
  const int64_t N = ssm_indices.size(0);
  const MoveSlots move{.op = "scatter_accepted_states",
                       .from_name = "intermediate_states",
                       .from = intermediate_states,
                       .to_name = "pool",
                       .to = pool,
                       .slot_dim = slot_dim,
                       .from_index = intermediate_indices,
                       .to_index = ssm_indices,
                       .accepted = num_accepted_tokens,
                       .to_min = std::max<int64_t>(min_slot, 0)};

  // checks
  Checks checks("scatter_accepted_states");
  MoveSlots::check_pool(checks, "pool", pool, slot_dim, true);
  checks.dtype("intermediate_states", intermediate_states, {DType::fp32, DType::bf16, DType::fp16, DType::fp8})
      .device("intermediate_states", intermediate_states)
      .no_grad("intermediate_states", intermediate_states)
      .that(intermediate_states.defined(), "intermediate_states", "a tensor", "None");
  move.check_slots(checks);
  checks.index("ssm_indices", ssm_indices, {-1}).index("num_accepted_tokens", num_accepted_tokens, {N});
  if (intermediate_indices.defined())
    checks.index("intermediate_indices", intermediate_indices, {N});
  else
    checks.that(intermediate_states.size(slot_dim) >= N, "intermediate_states",
                "a row for every index (without intermediate_indices)", intermediate_states);
  checks.done();

  // launch
  move.launch(pool.device, N);
}

}  // namespace gdn
