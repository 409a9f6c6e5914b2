#include "causal_conv1d.h"
#include "gen/ops.h"

namespace gdn {

Tensor causal_conv1d_fn(const Tensor& x_, const Tensor& weight, const OptTensor& bias, const OptTensor& conv_states,
                        const OptTensor& query_start_loc, const OptTensor& cache_indices,
                        const OptTensor& has_initial_state, int64_t activation, int64_t min_slot,
                        const OptTensor& seq_idx, bool channels_first) {
  // shapes
  const View x(x_), given(conv_states);
  const View state = given.dim == 1 && given.numel() == 0 ? View() : given;  // shape [0]: none
  const int last = static_cast<int>(x.dim) - 1;
  const Conv conv{.op = "causal_conv1d_fn",
                  .x = x,
                  .dim_b = x.dim == 3 ? 0 : -1,
                  .dim_t = channels_first ? last : last - 1,
                  .dim_d = channels_first ? last - 1 : last,
                  .weight = View(weight),
                  .bias = View(bias),
                  .state_name = "conv_states",
                  .state = state,
                  .indices_name = "cache_indices",
                  .indices = View(cache_indices),
                  .cu_seqlens = View(query_start_loc),
                  .has_state = View(has_initial_state),
                  .activation = activation,
                  .min_slot = min_slot,
                  .history = false};

  // checks
  Checks checks("causal_conv1d_fn");
  checks.that(x.dim == 2 || x.dim == 3, "x", channels_first ? "[D, T] or [B, D, T]" : "[T, D] or [B, T, D]", x)
      .that(!query_start_loc.has_value() || x.dim != 3, "x", "no batch dimension with query_start_loc", x)
      .that(!seq_idx.has_value(), "seq_idx", "None (not supported yet: use query_start_loc)", "a tensor");
  if (x.dim >= 2) conv.check(checks);
  checks.done();

  // launch
  return conv.launch();
}

}  // namespace gdn
