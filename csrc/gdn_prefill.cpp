#include "layer.h"

namespace gdn {

Tensor gdn_prefill(const Tensor& mixed_qkvz, const OptTensor& ba, const Tensor& conv_states, const Tensor& ssm_pool,
                   const Tensor& cache_indices, const Tensor& has_initial_state, const OptTensor& cu_seqlens_,
                   const Tensor& conv_weight, const OptTensor& conv_bias, const Tensor& A_log, const Tensor& dt_bias,
                   const Tensor& norm_weight, double eps, std::optional<double> scale, int64_t activation,
                   bool use_qk_l2norm_in_kernel, bool state_v_first, bool interleaved, int64_t norm_activation,
                   bool norm_before_gate, bool hf_rounding, const OptTensor& out_scale, const OptTensor& ssm_indices,
                   const OptTensor& ssm_checkpoints, const OptTensor& conv_checkpoints, int64_t checkpoint_every,
                   const OptTensor& checkpoint_indices, const OptTensor& prefix_lens, int64_t min_slot,
                   const OptTensor& out) {
  // shapes
  const Layer layer(mixed_qkvz, ba, conv_weight, conv_bias, conv_states, A_log, dt_bias, norm_weight, ssm_pool,
                    out_scale, state_v_first, interleaved);
  const View cu_seqlens(cu_seqlens_), slots(cache_indices), ssm_slots(ssm_indices), has_state(has_initial_state);
  const View states_kept(ssm_checkpoints), windows_kept(conv_checkpoints), kept_slots(checkpoint_indices),
      prefix(prefix_lens);
  const int64_t T = layer.mixed.size(0), H = layer.H, HV = layer.HV, K = layer.K, V = layer.V, D = layer.D;
  const int64_t N = cu_seqlens.defined() ? std::max<int64_t>(cu_seqlens.size(0), 1) - 1 : 1;

  // checks
  Checks checks("gdn_prefill");
  layer.check(checks);
  checks.that(layer.mixed.dim == 2, "mixed_qkvz", "two dimensions [T, columns]", layer.mixed)
      .that(runs_cpu_twins(layer.mixed.device) || layer.mixed.dtype != DType::fp32, "mixed_qkvz", "bf16 or fp16",
            layer.mixed)
      .cu_seqlens(cu_seqlens, 1)
      .index("cache_indices", slots, {N})
      .shape("has_initial_state", has_state, {N})
      .dtype("has_initial_state", has_state, {DType::b8})
      .device("has_initial_state", has_state)
      .that(activation == kNone || activation == kSilu, "activation", "0 (none) or 1 (silu)", activation)
      .that(norm_activation >= kNone && norm_activation <= kSigmoid, "norm_activation", "0, 1 (silu) or 2 (sigmoid)",
            norm_activation);
  if (ssm_slots.defined()) checks.index("ssm_indices", ssm_slots, {N});
  if (prefix.defined()) checks.index("prefix_lens", prefix, {N});
  checks
      .that(states_kept.defined() == windows_kept.defined(), "conv_checkpoints", "with ssm_checkpoints, or both None",
            windows_kept)
      .that(states_kept.defined() == kept_slots.defined(), "checkpoint_indices", "with checkpoints, or None",
            kept_slots);
  if (states_kept.defined()) {
    checks
        .pool("ssm_checkpoints", states_kept, {-1, HV, state_v_first ? V : K, state_v_first ? K : V},
              {DType::fp32, DType::bf16, DType::fp16})
        .shape("conv_checkpoints", windows_kept, {-1, D, layer.conv_weight.size(1) - 1})
        .dtype("conv_checkpoints", windows_kept, {layer.mixed.dtype, DType::fp32})
        .device("conv_checkpoints", windows_kept)
        .index("checkpoint_indices", kept_slots, {N, -1})
        .that(checkpoint_every >= 64 && checkpoint_every % 64 == 0, "checkpoint_every", "a multiple of 64",
              checkpoint_every);
  }
  checks.out("out", View(out), {T, HV, V}, layer.y_dtype()).done();

  // launch: convolution, gates, rule, gated norm
  const OptTensor conv_prefix = states_kept.defined() ? prefix_lens : OptTensor();
  Tensor qkv = causal_conv1d_fn(layer.conv_input(mixed_qkvz), conv_weight, conv_bias, conv_states, cu_seqlens_,
                                cache_indices, has_initial_state, activation, min_slot, {}, false, conv_checkpoints,
                                checkpoint_every, checkpoint_indices, conv_prefix, layer.conv_H(), layer.conv_K());
  auto [g, beta] =
      fused_gdn_gating(A_log, layer.gate(mixed_qkvz, ba, 1), layer.gate(mixed_qkvz, ba, 0), dt_bias, 1, 20);
  auto tokens = [&](const Tensor& t, Sizes sizes, Sizes strides, int64_t offset) {
    return view_of(t, sizes, strides, offset, View(t).dim);
  };
  Tensor o = chunk_gated_delta_rule_update(
      tokens(qkv, {1, T, H, K}, {T * D, D, K, 1}, 0), tokens(qkv, {1, T, H, K}, {T * D, D, K, 1}, H * K),
      tokens(qkv, {1, T, HV, V}, {T * D, D, V, 1}, 2 * H * K), tokens(g, {1, T, HV}, {T * HV, HV, 1}, 0),
      tokens(beta, {1, T, HV}, {T * HV, HV, 1}, 0), ssm_pool, ssm_indices.value_or(cache_indices), has_initial_state,
      cu_seqlens_, scale, use_qk_l2norm_in_kernel, state_v_first, true, ssm_checkpoints, checkpoint_every,
      checkpoint_indices, prefix_lens, min_slot);
  return gated_rmsnorm(tokens(o, {T, HV, V}, {HV * V, V, 1}, 0), norm_weight, layer.z(mixed_qkvz), eps, norm_activation,
                       norm_before_gate, 0, hf_rounding, out_scale, out);
}

}  // namespace gdn
