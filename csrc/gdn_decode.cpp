#include "layer.h"

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
                  const OptTensor& out) {
  // shapes: one token a row [B, columns], T tokens a row [B, T, columns], or packed rows [T, columns]
  const Layer layer(mixed_qkvz, ba, conv_weight, conv_bias, conv_states, A_log, dt_bias, norm_weight, ssm_pool,
                    out_scale, state_v_first, interleaved);
  const View cu_seqlens(cu_seqlens_), slots(cache_indices), states(intermediate_states), windows(intermediate_windows);
  const View &mixed = layer.mixed, accepted(num_accepted_tokens), tree(parents), ssm_slots(ssm_indices);
  const bool packed = cu_seqlens.defined(), rows = !packed && mixed.dim == 3;
  const int64_t B = packed ? 1 : mixed.size(0), T = packed ? mixed.size(0) : rows ? mixed.size(1) : 1;
  const int64_t N = packed ? std::max<int64_t>(cu_seqlens.size(0), 1) - 1 : B;
  const int64_t H = layer.H, HV = layer.HV, K = layer.K, V = layer.V, D = layer.D;
  RecurrentSizes sizes(B, H, K, HV, V);
  sizes.T = T, sizes.N = N, sizes.packed = packed;

  // checks
  Checks checks("gdn_decode");
  layer.check(checks);
  checks.that(!packed || mixed.dim == 2, "mixed_qkvz", "two dimensions [T, columns] with cu_seqlens", mixed)
      .that(!rows || B <= 1 || T == 0 || mixed.stride(0) == T * mixed.stride(1), "mixed_qkvz", "rows evenly apart",
            mixed)
      .cu_seqlens(cu_seqlens, 1)
      .index("cache_indices", slots, {N})
      .that(activation == kNone || activation == kSilu, "activation", "0 (none) or 1 (silu)", activation)
      .that(norm_activation >= kNone && norm_activation <= kSigmoid, "norm_activation", "0, 1 (silu) or 2 (sigmoid)",
            norm_activation)
      .that(!accepted.defined() || ssm_slots.dim == 2, "ssm_indices", "[N, S + 1] with num_accepted_tokens", ssm_slots)
      .that(states.defined() == windows.defined(), "intermediate_windows", "with intermediate_states, or both None",
            windows)
      .that(
          !windows.defined() || (windows.dim == 4 && windows.size(2) == D &&
                                 windows.size(3) == layer.conv_weight.size(1) - 1 && (packed || windows.size(1) >= T)),
          "intermediate_windows", "[slots, tokens, D, W - 1], a window for every token of a row", windows)
      .dtype("intermediate_windows", windows.defined() ? windows : mixed, {mixed.dtype, DType::fp32})
      .that(!tree.defined() || windows.defined(), "intermediate_windows", "a tensor with parents", "None")
      .that(update_state || windows.defined(), "intermediate_windows", "a tensor without update_state", "None");
  PoolSlots{.read = ssm_slots.defined() ? ssm_slots : slots,
            .write = View(ssm_write_indices),
            .accepted = accepted,
            .steps = states,
            .steps_slots = View(intermediate_indices),
            .parents = tree}
      .check(checks, sizes, View(ssm_pool), state_v_first);
  if (rows)
    checks.out("out", View(out), {B, T, HV, V}, layer.y_dtype());
  else
    checks.out("out", View(out), {B * T, HV, V}, layer.y_dtype());
  checks.done();

  // launch: convolution, rule with raw gates, gated norm
  auto tokens = [&](const Tensor& t, Sizes sizes, Sizes strides, int64_t offset) {
    return view_of(t, sizes, strides, offset, View(t).dim);
  };
  Tensor x = layer.conv_input(mixed_qkvz);
  if (rows) x = tokens(x, {B, View(x).size(2), T}, {mixed.stride(0), 1, mixed.stride(1)}, 0);
  Tensor qkv = causal_conv1d_update(x, conv_states, conv_weight, conv_bias, activation, cache_indices,
                                    num_accepted_tokens, cu_seqlens_, intermediate_windows, intermediate_indices,
                                    parents, min_slot, {}, layer.conv_H(), layer.conv_K());
  auto gate = [&](int64_t which) {
    Tensor t = layer.gate(mixed_qkvz, ba, which);
    const View v(t);
    const int64_t lead = v.stride(0), row = rows ? v.stride(1) : lead;
    if (interleaved) return tokens(t, {B, T, H, layer.r}, {lead, row, v.stride(-2), 1}, 0);
    return tokens(t, {B, T, HV}, {lead, row, 1}, 0);
  };
  Tensor o = fused_recurrent_gated_delta_rule_update(
      tokens(qkv, {B, T, H, K}, {T * D, D, K, 1}, 0), tokens(qkv, {B, T, H, K}, {T * D, D, K, 1}, H * K),
      tokens(qkv, {B, T, HV, V}, {T * D, D, V, 1}, 2 * H * K), {}, {}, A_log, gate(1), dt_bias, gate(0), ssm_pool,
      ssm_indices.value_or(cache_indices), ssm_write_indices, num_accepted_tokens, cu_seqlens_, intermediate_states,
      intermediate_indices, parents, {}, update_state, scale, use_qk_l2norm_in_kernel, state_v_first, min_slot, {}, {});
  if (!rows) o = tokens(o, {B * T, HV, V}, {HV * V, V, 1}, 0);
  return gated_rmsnorm(o, norm_weight, layer.z(mixed_qkvz), eps, norm_activation, norm_before_gate, 0, hf_rounding,
                       out_scale, out);
}

}  // namespace gdn
