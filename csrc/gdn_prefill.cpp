#include "chunk.h"
#include "gating.h"
#include "gen/ops.h"
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
                   bool write_state, const OptTensor& pool_scale, const OptTensor& rounding_seed,
                   const OptTensor& out) {
  constexpr const char* op = "gdn_prefill";

  // shapes
  const Layer layer(mixed_qkvz, ba, conv_weight, conv_bias, conv_states, A_log, dt_bias, norm_weight, ssm_pool,
                    out_scale, state_v_first, interleaved);
  const View cu_seqlens(cu_seqlens_), slots(cache_indices), ssm_slots(ssm_indices), has_state(has_initial_state),
      windows_kept(conv_checkpoints);
  const int64_t T = layer.mixed.size(0), H = layer.H, HV = layer.HV, K = layer.K, V = layer.V, D = layer.D;
  const int64_t N = cu_seqlens.defined() ? std::max<int64_t>(cu_seqlens.size(0), 1) - 1 : 1;
  RecurrentSizes s(1, H, K, HV, V);
  s.T = T, s.N = N, s.packed = cu_seqlens.defined();
  const ChunkStates states{.h0 = layer.pool,
                           .ht = write_state ? layer.pool : View(),
                           .slots = ssm_slots.defined() ? ssm_slots : slots,
                           .has_state = has_state,
                           .checkpoints = View(ssm_checkpoints),
                           .checkpoint_slots = View(checkpoint_indices),
                           .prefix = View(prefix_lens),
                           .scales = View(pool_scale),
                           .seed = View(rounding_seed),
                           .second = {ssm_slots.defined() ? slots : View(), layer.conv_states.size(0)},
                           .min_slot = min_slot,
                           .every = checkpoint_every,
                           .v_first = state_v_first};

  // checks
  Checks checks(op);
  layer.check(checks, activation, norm_activation);
  checks.that(layer.mixed.dim == 2, "mixed_qkvz", "two dimensions [T, columns]", layer.mixed)
      .that(runs_cpu_twins(layer.mixed.device) || layer.mixed.dtype != DType::fp32, "mixed_qkvz", "bf16 or fp16",
            layer.mixed)
      .that(T <= INT32_MAX, "mixed_qkvz", "fewer than 2^31 tokens", T)
      .cu_seqlens(cu_seqlens, 1)
      .index("cache_indices", slots, {N})
      .shape("has_initial_state", has_state, {N})
      .dtype("has_initial_state", has_state, {DType::b8})
      .device("has_initial_state", has_state);
  if (ssm_slots.defined()) checks.index("ssm_indices", ssm_slots, {N});
  checks.that(states.checkpoints.defined() == windows_kept.defined(), "conv_checkpoints",
              "with ssm_checkpoints, or both None", windows_kept);
  check_rounding(checks, s, layer.pool, states.scales, states.seed);
  states.check_checkpoints(checks, s, "ssm_checkpoints");
  if (windows_kept.defined())
    check_lines(checks, "conv_checkpoints", windows_kept, {-1, D, layer.conv_weight.size(1) - 1}, layer.mixed.dtype);
  checks.out("out", View(out), {T, HV, V}, layer.y_dtype()).done();

  // launch: convolution, gates, rule, gated norm. In the result's memory, unless that is fp8, lies first what the norm
  // reads
  const DType dtype = layer.mixed.dtype;
  const Device device = layer.mixed.device;
  const int64_t row = element_size(dtype) * T;
  Workspace parts;
  const int64_t qkv_at = parts.add(row * D), g_at = parts.add(4 * T * HV), beta_at = parts.add(4 * T * HV);
  const int64_t o_at = layer.out_scale.defined() ? parts.add(row * HV * V) : 0;
  const int64_t between_at =
      ChunkRule::chunks_serve(s, device) ? parts.add(ChunkRule::Between(s, dtype, states.prefix.defined()).bytes) : 0;
  const Tensor memory = parts.allocate(dtype, device);
  Tensor y = result(out, {T, HV, V}, layer.y_dtype(), device);

  const Tensor qkv = view_of(memory, {T, D}, {D, 1}, qkv_at / element_size(dtype), 1);
  const Tensor x = layer.conv_input(mixed_qkvz);
  Conv conv = layer.conv(op, slots, cu_seqlens, true, activation, min_slot, false);
  conv.x = View(x), conv.out = View(qkv), conv.has_state = has_state;
  conv.checkpoints = windows_kept, conv.checkpoint_indices = states.checkpoint_slots;
  conv.checkpoint_every = checkpoint_every, conv.prefix_lens = windows_kept.defined() ? states.prefix : View();
  conv.reads_only = !write_state, conv.also = ssm_slots, conv.n_also = layer.pool.size(0);
  conv.launch(qkv);

  const Tensor a = layer.gate(mixed_qkvz, ba, 1), b = layer.gate(mixed_qkvz, ba, 0);
  const Part g(View(memory), g_at, {1, T, HV}, DType::fp32), beta(View(memory), beta_at, {1, T, HV}, DType::fp32);
  Gating{layer.A_log, View(a), View(b), layer.dt_bias, 1, 20}.launch(op, g, beta);

  const Tensor q = view_of(qkv, {1, T, H, K}, {T * D, D, K, 1}, 0, 2);
  const Tensor k = view_of(qkv, {1, T, H, K}, {T * D, D, K, 1}, H * K, 2);
  const Tensor v = view_of(qkv, {1, T, HV, V}, {T * D, D, V, 1}, 2 * H * K, 2);
  const Part o(View(layer.out_scale.defined() ? memory : y), o_at, {T, HV, V}, dtype);
  const ChunkRule rule{op, s, View(q), View(k), View(v), g, beta, cu_seqlens, scale, use_qk_l2norm_in_kernel, states};
  if (rule.by_chunks())
    rule.launch_chunks(o, static_cast<char*>(View(memory).data) + between_at);
  else
    rule.launch_tokens(o);

  const Tensor z = layer.z(mixed_qkvz);
  GatedNorm(o, layer.norm_weight, View(z), eps, norm_activation, norm_before_gate, 0, hf_rounding)
      .launch(op, View(y), layer.out_scale);
  return y;
}

}  // namespace gdn
