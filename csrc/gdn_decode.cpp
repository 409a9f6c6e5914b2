#include "gdn_decode.h"

#include "gen/ops.h"

namespace gdn {

Tensor gdn_decode(const Tensor& mixed_qkvz, const OptTensor& ba, const Tensor& conv_states, const Tensor& ssm_pool,
                  const Tensor& cache_indices, const Tensor& conv_weight, const OptTensor& conv_bias,
                  const Tensor& A_log, const Tensor& dt_bias, const Tensor& norm_weight, double eps,
                  std::optional<double> scale, int64_t activation, bool use_qk_l2norm_in_kernel, bool state_v_first,
                  bool interleaved, int64_t norm_activation, bool norm_before_gate, bool hf_rounding,
                  const OptTensor& out_scale, const OptTensor& cu_seqlens_, const OptTensor& ssm_indices,
                  const OptTensor& ssm_write_indices, const OptTensor& num_accepted_tokens,
                  const OptTensor& intermediate_states, const OptTensor& intermediate_windows,
                  const OptTensor& intermediate_indices, const OptTensor& parents, bool update_state, int64_t min_slot,
                  const OptTensor& pool_scale, const OptTensor& rounding_seed, const OptTensor& out) {
  constexpr const char* op = "gdn_decode";

  // shapes: one token a row [B, columns], T tokens a row [B, T, columns], or packed rows [T, columns]
  const Layer layer(mixed_qkvz, ba, conv_weight, conv_bias, conv_states, A_log, dt_bias, norm_weight, ssm_pool,
                    out_scale, state_v_first, interleaved);
  const View cu_seqlens(cu_seqlens_), slots(cache_indices), states(intermediate_states), windows(intermediate_windows);
  const View &mixed = layer.mixed, accepted(num_accepted_tokens), tree(parents), ssm_slots(ssm_indices),
             steps_slots(intermediate_indices);
  const bool packed = cu_seqlens.defined(), rows = !packed && mixed.dim == 3;
  const int64_t B = packed ? 1 : mixed.size(0), T = packed ? mixed.size(0) : rows ? mixed.size(1) : 1;
  const int64_t N = packed ? std::max<int64_t>(cu_seqlens.size(0), 1) - 1 : B;
  const int64_t H = layer.H, HV = layer.HV, K = layer.K, V = layer.V, D = layer.D, W = layer.conv_weight.size(1);
  RecurrentSizes sizes(B, H, K, HV, V);
  sizes.T = T, sizes.N = N, sizes.packed = packed;

  const PoolSlots pool_slots{.read = ssm_slots.defined() ? ssm_slots : slots,
                             .write = View(ssm_write_indices),
                             .accepted = accepted,
                             .steps = states,
                             .steps_slots = steps_slots,
                             .parents = tree,
                             .scales = View(pool_scale),
                             .seed = View(rounding_seed),
                             .second = {ssm_slots.defined() ? slots : View(), layer.conv_states.size(0)},
                             .most_tokens = std::min(accepted.defined() ? layer.conv_states.size(2) - W + 2 : INT32_MAX,
                                                     windows.defined() ? windows.size(1) : INT32_MAX)};

  // checks
  Checks checks(op);
  layer.check(checks, activation, norm_activation);
  checks.that(!packed || mixed.dim == 2, "mixed_qkvz", "two dimensions [T, columns] with cu_seqlens", mixed)
      .that(!rows || B <= 1 || T == 0 || mixed.stride(0) == T * mixed.stride(1), "mixed_qkvz", "rows evenly apart",
            mixed)
      .cu_seqlens(cu_seqlens, 1)
      .index("cache_indices", slots, {N})
      .that(!accepted.defined() || ssm_slots.dim == 2, "ssm_indices", "[N, S + 1] with num_accepted_tokens", ssm_slots)
      .that(states.defined() == windows.defined(), "intermediate_windows", "with intermediate_states, or both None",
            windows)
      .that(!accepted.defined() || layer.conv_states.size(2) >= W - 2 + (packed ? 0 : T), "conv_states",
            "at least W - 2 + T columns with num_accepted_tokens", layer.conv_states)
      .that(!tree.defined() || windows.defined(), "intermediate_windows", "a tensor with parents", "None")
      .that(update_state || windows.defined(), "intermediate_windows", "a tensor without update_state", "None");
  if (windows.defined()) {
    check_lines(checks, "intermediate_windows", windows, {-1, -1, D, W - 1}, mixed.dtype);
    checks.that(packed || windows.size(1) >= T, "intermediate_windows", "a window for every token of a row", windows)
        .that(steps_slots.defined() || windows.size(0) >= N, "intermediate_windows", "windows for every row", windows);
  }
  pool_slots.check(checks, sizes, layer.pool, state_v_first);
  if (rows)
    checks.out("out", View(out), {B, T, HV, V}, layer.y_dtype());
  else
    checks.out("out", View(out), {B * T, HV, V}, layer.y_dtype());
  checks.done();

  // launch
  Tensor y = rows ? result(out, {B, T, HV, V}, layer.y_dtype(), mixed.device)
                  : result(out, {B * T, HV, V}, layer.y_dtype(), mixed.device);
  Conv conv = layer.conv(op, slots, cu_seqlens, packed, activation, min_slot, true);
  conv.accepted = accepted, conv.parents = tree, conv.windows = windows, conv.window_indices = steps_slots;
  conv.also = ssm_slots, conv.n_also = layer.pool.size(0), conv.most_tokens = pool_slots.columns();
  const RecurrentUpdate rule{.op = op,
                             .s = sizes,
                             .q = {},
                             .k = {},
                             .v = {},
                             .gates = {.A_log = layer.A_log, .dt_bias = layer.dt_bias},
                             .pool = layer.pool,
                             .cu_seqlens = cu_seqlens,
                             .slots = pool_slots,
                             .update_state = update_state,
                             .l2norm = use_qk_l2norm_in_kernel,
                             .v_first = state_v_first,
                             .scale = scale,
                             .min_slot = min_slot};
  launch_layer(layer, mixed_qkvz, ba, conv, rule, eps, norm_activation, norm_before_gate, hf_rounding, View(y));
  return y;
}

}  // namespace gdn
