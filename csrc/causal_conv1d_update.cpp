#include "causal_conv1d.h"
#include "gen/ops.h"

namespace gdn {

Tensor causal_conv1d_update(const Tensor& x_, const Tensor& conv_state, const Tensor& weight, const OptTensor& bias,
                            int64_t activation, const OptTensor& conv_state_indices,
                            const OptTensor& num_accepted_tokens, const OptTensor& query_start_loc,
                            const OptTensor& intermediate_windows, const OptTensor& intermediate_indices,
                            const OptTensor& parents, int64_t min_slot, const OptTensor& cache_seqlens) {
  // shapes
  const View x(x_);
  const Conv conv{.op = "causal_conv1d_update",
                  .x = x,
                  .dim_b = 0,
                  .dim_t = x.dim == 3 ? 2 : -1,
                  .dim_d = 1,
                  .weight = View(weight),
                  .bias = View(bias),
                  .state_name = "conv_state",
                  .state = View(conv_state),
                  .indices_name = "conv_state_indices",
                  .indices = View(conv_state_indices),
                  .cu_seqlens = {},
                  .has_state = {},
                  .activation = activation,
                  .min_slot = min_slot,
                  .history = true};

  // checks
  Checks checks("causal_conv1d_update");
  checks.that(x.dim == 2 || x.dim == 3, "x", "[B, D] or [B, D, T]", x)
      .that(conv.state.defined(), "conv_state", "a tensor [slots, D, L]", "None");
  auto later = [&](const char* name, const OptTensor& t) {
    checks.that(!t.has_value(), name, "None (not supported yet)", "a tensor");
  };
  later("num_accepted_tokens", num_accepted_tokens);
  later("query_start_loc", query_start_loc);
  later("intermediate_windows", intermediate_windows);
  later("intermediate_indices", intermediate_indices);
  later("parents", parents);
  later("cache_seqlens", cache_seqlens);
  if (x.dim >= 2) conv.check(checks);
  checks.done();

  // launch
  return conv.launch();
}

}  // namespace gdn
