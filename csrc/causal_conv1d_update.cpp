#include "conv.h"
#include "gen/ops.h"

namespace gdn {

Tensor causal_conv1d_update(const Tensor& x_, const Tensor& conv_state, const Tensor& weight_, const OptTensor& bias,
                            int64_t activation, const OptTensor& conv_state_indices,
                            const OptTensor& num_accepted_tokens, const OptTensor& query_start_loc,
                            const OptTensor& intermediate_windows, const OptTensor& intermediate_indices,
                            const OptTensor& parents, int64_t min_slot, const OptTensor& cache_seqlens, int64_t H,
                            int64_t K, const OptTensor& out) {
  // shapes
  const View x(x_), weight(weight_);
  const bool varlen = query_start_loc.has_value();
  const Conv conv{.op = "causal_conv1d_update",
                  .x = x,
                  .dim_b = varlen ? -1 : 0,
                  .dim_t = varlen       ? 0
                           : x.dim == 3 ? 2
                                        : -1,
                  .dim_d = 1,
                  .weight = weight,
                  .bias = View(bias),
                  .state_name = "conv_state",
                  .state = View(conv_state),
                  .indices_name = "conv_state_indices",
                  .indices = View(conv_state_indices),
                  .cu_seqlens = View(query_start_loc),
                  .has_state = {},
                  .activation = activation,
                  .min_slot = min_slot,
                  .history = true,
                  .out = View(out),
                  .groups = groups(H, K, weight),
                  .accepted = View(num_accepted_tokens),
                  .positions = View(cache_seqlens),
                  .parents = View(parents),
                  .windows = View(intermediate_windows),
                  .window_indices = View(intermediate_indices)};
  const View &state = conv.state, &windows = conv.windows;
  const int64_t N = conv.N(), rows = varlen ? 0 : conv.T();  // tokens of every row, where the shape says

  // checks
  Checks checks("causal_conv1d_update");
  if (varlen)
    checks.that(x.dim == 2, "x", "[T, D] with query_start_loc", x);
  else
    checks.that(x.dim == 2 || x.dim == 3, "x", "[B, D] or [B, D, T]", x);
  if (x.dim == 2 || x.dim == 3) {
    conv.check(checks);
    conv.check_groups(checks, H, K);
    conv.check_out(checks, !conv.parents.defined());
  }
  if (conv.accepted.defined())
    checks.index("num_accepted_tokens", conv.accepted, {N})
        .that(state.dim != 3 || state.sizes[2] >= conv.W() - 2 + rows, "conv_state",
              "at least W - 2 + T columns with num_accepted_tokens", state)
        .that(!conv.positions.defined(), "cache_seqlens", "None with num_accepted_tokens", conv.positions);
  if (conv.positions.defined()) checks.index("cache_seqlens", conv.positions, {N});
  if (windows.defined()) {
    check_lines(checks, "intermediate_windows", windows, {-1, -1, conv.D(), conv.W() - 1}, x.dtype);
    checks.that(windows.size(1) >= rows, "intermediate_windows", "a window for every token of a row", windows)
        .that(conv.window_indices.defined() || windows.size(0) >= N, "intermediate_windows", "windows for every row",
              windows);
  }
  if (conv.window_indices.defined())
    checks.that(windows.defined(), "intermediate_indices", "None without intermediate_windows", conv.window_indices)
        .index("intermediate_indices", conv.window_indices, {N});
  if (conv.parents.defined())
    checks.index("parents", conv.parents, {N, -1})
        .that(conv.parents.size(1) >= rows, "parents", "a parent for every token of a row", conv.parents)
        .that(windows.defined(), "intermediate_windows", "a tensor with parents (a tree has no one window after it)",
              "None");
  checks.done();

  // launch
  return conv.launch(out);
}

}  // namespace gdn
