#include "gen/ops.h"
#include "move_slots.h"

namespace gdn {

Tensor gather_states(const Tensor& pool_, const Tensor& indices_, const OptTensor& has_initial_state_,
                     std::optional<ScalarType> output_dtype, int64_t min_slot, int64_t slot_dim) {
  // shapes
  const View pool(pool_), indices(indices_), has_initial_state(has_initial_state_);
  const int64_t N = indices.size(0);
  const DType dtype = output_dtype.has_value() ? from_scalar_type(*output_dtype) : pool.dtype;
  const bool floats = dtype == DType::fp32 || dtype == DType::bf16 || dtype == DType::fp16;

  // checks
  Checks checks("gather_states");
  MoveSlots::check_pool(checks, "pool", pool, slot_dim, false);
  checks.index("indices", indices, {-1})
      .that(dtype == pool.dtype || (floats && pool.dtype != DType::fp8), "output_dtype",
            pool.dtype == DType::fp8 ? "None or fp8_e4m3 like the pool (its scale is not known)" : "fp32, bf16 or fp16",
            name(dtype));
  MoveSlots::check_rows(checks, "has_initial_state", has_initial_state, N);
  checks.done();

  // launch
  Tensor states_ = empty_like(pool, dtype, slot_dim, N);
  const View states(states_);
  const MoveSlots move{.op = "gather_states",
                       .from_name = "pool",
                       .from = pool,
                       .to_name = "states",
                       .to = states,
                       .slot_dim = slot_dim,
                       .from_index = indices,
                       .mask = has_initial_state,
                       .from_min = std::max<int64_t>(min_slot, 0),
                       .zero_others = true};
  move.launch(pool.device, N);
  return states_;
}

}  // namespace gdn
