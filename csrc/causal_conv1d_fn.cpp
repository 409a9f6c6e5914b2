#include "conv.h"
#include "gen/ops.h"

namespace gdn {

Tensor causal_conv1d_fn(const Tensor& x_, const Tensor& weight_, const OptTensor& bias, const OptTensor& conv_states,
                        const OptTensor& query_start_loc, const OptTensor& cache_indices,
                        const OptTensor& has_initial_state, int64_t activation, int64_t min_slot,
                        const OptTensor& seq_idx, bool channels_first, const OptTensor& checkpoints,
                        int64_t checkpoint_every, const OptTensor& checkpoint_indices, const OptTensor& prefix_lens,
                        int64_t H, int64_t K, const OptTensor& out) {
  // shapes
  const View x(x_), weight(weight_), given(conv_states);
  const View state = given.dim == 1 && given.numel() == 0 ? View() : given;  // shape [0]: none
  const int last = static_cast<int>(x.dim) - 1;
  const Conv conv{.op = "causal_conv1d_fn",
                  .x = x,
                  .dim_b = x.dim == 3 ? 0 : -1,
                  .dim_t = channels_first ? last : last - 1,
                  .dim_d = channels_first ? last - 1 : last,
                  .weight = weight,
                  .bias = View(bias),
                  .state_name = "conv_states",
                  .state = state,
                  .indices_name = "cache_indices",
                  .indices = View(cache_indices),
                  .cu_seqlens = View(query_start_loc),
                  .has_state = View(has_initial_state),
                  .activation = activation,
                  .min_slot = min_slot,
                  .history = false,
                  .out = View(out),
                  .groups = groups(H, K, weight),
                  .seq_idx = View(seq_idx),
                  .checkpoints = View(checkpoints),
                  .checkpoint_indices = View(checkpoint_indices),
                  .prefix_lens = View(prefix_lens),
                  .checkpoint_every = checkpoint_every};

  // checks
  Checks checks("causal_conv1d_fn");
  checks.that(x.dim == 2 || x.dim == 3, "x", channels_first ? "[D, T] or [B, D, T]" : "[T, D] or [B, T, D]", x)
      .that(!query_start_loc.has_value() || x.dim != 3, "x", "no batch dimension with query_start_loc", x);
  if (x.dim == 2 || x.dim == 3) {
    conv.check(checks);
    conv.check_groups(checks, H, K);
    conv.check_out(checks, false);
  }
  if (conv.seq_idx.defined())
    checks.index("seq_idx", conv.seq_idx, {conv.B(), conv.T()})
        .that(!state.defined(), "conv_states", "None with seq_idx", state)
        .that(!conv.cu_seqlens.defined(), "query_start_loc", "None with seq_idx", conv.cu_seqlens)
        .that(!conv.checkpoints.defined(), "checkpoints", "None with seq_idx", conv.checkpoints);
  if (conv.checkpoints.defined()) {
    check_lines(checks, "checkpoints", conv.checkpoints, {-1, conv.D(), conv.W() - 1}, x.dtype);
    checks.that(checkpoint_every >= 1, "checkpoint_every", "at least 1 with checkpoints", checkpoint_every)
        .index("checkpoint_indices", conv.checkpoint_indices, {conv.N(), -1});
    if (conv.prefix_lens.defined()) checks.index("prefix_lens", conv.prefix_lens, {conv.N()});
  } else {
    checks
        .that(!conv.checkpoint_indices.defined(), "checkpoint_indices", "None without checkpoints",
              conv.checkpoint_indices)
        .that(!conv.prefix_lens.defined(), "prefix_lens", "None without checkpoints", conv.prefix_lens);
  }
  checks.done();

  // launch
  return conv.launch(out);
}

}  // namespace gdn
