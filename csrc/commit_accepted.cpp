#include "gen/ops.h"
#include "rings.h"

namespace gdn {

void commit_accepted(const Tensor& ssm_pool_, const Tensor& ring_k_, const Tensor& ring_u_, const Tensor& ring_g_,
                     const Tensor& num_entries_, const Tensor& ssm_indices_, bool state_v_first, int64_t min_slot) {
  constexpr const char* op = "commit_accepted";

  // shapes
  const View pool(ssm_pool_), num_entries(num_entries_), ssm_indices(ssm_indices_);
  const Rings rings{View(ring_k_), View(ring_u_), View(ring_g_), pool.size(0)};
  const RecurrentSizes s(ssm_indices.size(0), rings.k.size(2), rings.k.size(3), rings.u.size(2), rings.u.size(3));

  // checks
  Checks checks(op);
  check_frozen(checks, s, pool, state_v_first);
  rings.check(checks, s);
  checks.that(s.K >= 1 && s.K <= 256, "ring_k", "a head size K of 1 to 256", s.K)
      .that(s.V >= 1 && s.V <= 256, "ring_u", "a head size V of 1 to 256", s.V)
      .that(s.H >= 1 && s.HV >= 1 && s.HV % s.H == 0, "ring_u", "heads in a multiple of ring_k's", s.HV)
      .index("num_entries", num_entries, {-1})
      .index("ssm_indices", ssm_indices, {num_entries.size(0)})
      .done();

  // pick
  const auto kernel = pick_ring(op, s, pool, rings, state_v_first);

  // launch
  FusedRecurrentRingArgs args = ring_args(s, pool, ssm_indices, min_slot, rings);
  args.entries = index_arg(num_entries);
  launch_ring(kernel, s, args);
}

}  // namespace gdn
