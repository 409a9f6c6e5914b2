// A layer's decode step: in one launch, or by the launches of single ops.
#pragma once

#include "layer.h"

namespace gdn {

// y by three launches: convolution, rule with raw gates, gated norm. `conv` and `rule` are without their tokens. In y's
// memory, unless that is fp8, lies first what the norm reads.
inline void composed(const Layer& layer, const Tensor& mixed_qkvz, const OptTensor& ba, Conv conv, RecurrentUpdate rule,
                     double eps, int64_t norm_activation, bool norm_before_gate, bool hf_rounding, const View& y) {
  const RecurrentSizes& s = rule.s;
  const int64_t B = s.B, T = s.T, H = s.H, HV = s.HV, K = s.K, V = s.V, D = layer.D;
  const DType dtype = layer.mixed.dtype;
  const bool rows = layer.mixed.dim == 3;
  const View& out_scale = layer.out_scale;
  Workspace parts;
  const int64_t token = element_size(dtype), qkv_at = parts.add(token * B * T * D);
  const int64_t o_at = out_scale.defined() ? parts.add(token * B * T * HV * V) : 0;
  const Tensor memory = parts.allocate(dtype, layer.mixed.device);

  const Tensor x = layer.conv_input(mixed_qkvz), qkv = view_of(memory, {B, T, D}, {T * D, D, 1}, qkv_at / token, 1);
  const Tensor out = rows ? qkv : view_of(memory, {B * T, D}, {D, 1}, qkv_at / token, 1);
  conv.x = View(x), conv.out = View(out);
  conv.launch(out);

  auto gate = [&](int64_t which) {
    Tensor t = layer.gate(mixed_qkvz, ba, which);
    const View v(t);
    const int64_t lead = v.stride(0), row = rows ? v.stride(1) : lead;
    if (layer.interleaved) return view_of(t, {B, T, H, layer.r}, {lead, row, v.stride(-2), 1}, 0, v.dim);
    return view_of(t, {B, T, HV}, {lead, row, 1}, 0, v.dim);
  };
  const Tensor q = view_of(qkv, {H, K}, {K, 1}, 0, 1), k = view_of(qkv, {H, K}, {K, 1}, H * K, 1);
  const Tensor v = view_of(qkv, {HV, V}, {V, 1}, 2 * H * K, 1), a = gate(1), b = gate(0);
  const View o_in = out_scale.defined() ? View(memory) : y;
  const Part o(o_in, o_at, {B, T, HV, V}, dtype), o_rows(o_in, o_at, {B * T, HV, V}, dtype);
  rule.q = View(q), rule.k = View(k), rule.v = View(v), rule.gates.a = View(a), rule.gates.b = View(b);
  rule.launch(o);

  const Tensor z = layer.z(mixed_qkvz);
  GatedNorm(rows ? o : o_rows, layer.norm_weight, View(z), eps, norm_activation, norm_before_gate, 0, hf_rounding)
      .launch(rule.op, y, out_scale);
}

// Whether `one_launch` does it: a plain step of one token a row on states that are moved 16 bytes at a time.
inline bool one_token(const Layer& layer, const Conv& conv, const RecurrentUpdate& rule) {
  const RecurrentSizes& s = rule.s;
  return !runs_cpu_twins(layer.mixed.device) && s.T == 1 && !s.packed && s.K == 128 && s.V == 128 &&
         layer.mixed.dtype != DType::fp32 && rule.update_state && !rule.slots.special() &&
         !rule.slots.scales.defined() && !conv.windows.defined() && states_aligned(layer.pool);
}

inline void one_launch(const Layer& layer, const Conv& conv, const RecurrentUpdate& rule, double eps,
                       int64_t norm_activation, bool norm_before_gate, bool hf_rounding, const View& y) {
  const RecurrentSizes& s = rule.s;
  const View &mixed = layer.mixed, &ba = layer.one_row ? mixed : layer.ba;
  const DType dtype = mixed.dtype;
  const int64_t W = layer.conv_weight.size(1), r = layer.r, size = element_size(dtype);
  const auto column = [&](const View& t, int64_t at) { return static_cast<char*>(t.data) + at * size; };
  const int64_t b_at = layer.one_row ? layer.D + s.HV * s.V : 0, a_at = b_at + (layer.interleaved ? r : s.HV);
  const auto gate = [&](int64_t at) {
    return GateArg{{column(ba, at), ba.stride(0), 0, 1}, layer.interleaved ? 2 * r : r, static_cast<int32_t>(dtype)};
  };

  GdnDecodeStepArgs a{};
  a.rule = recurrent_args(s, dtype, rule.scale, rule.l2norm);
  a.rule.g = gate(a_at), a.rule.beta = gate(b_at);
  a.rule.A_log = gate_arg(layer.A_log, false, r), a.rule.dt_bias = gate_arg(layer.dt_bias, false, r);
  a.rule.h0 = a.rule.ht = layer.pool.data, a.rule.h0_stride = a.rule.ht_stride = layer.pool.stride(0);
  a.rule.slots = layer.pool.size(0), a.rule.min_slot = std::max<int64_t>(rule.min_slot, 0);
  a.rule.read = index_arg(rule.slots.read), a.rule.write = index_arg(rule.slots.write);

  a.x = mixed.data, a.x_stride = mixed.stride(0), a.groups = groups_arg(conv.groups, layer.D);
  a.filter = filter_arg(layer.conv_weight, layer.conv_bias, dtype, conv.activation, 4);
  a.lines = lines_arg(layer.conv_states, dtype, 1, W - 1), a.conv_slots = index_arg(conv.indices);
  a.W = static_cast<int32_t>(W);

  const int64_t group = 2 * s.K + 2 * r * s.V;  // columns of an interleaved one
  a.z = column(mixed, layer.interleaved ? group - r * s.V : layer.D);
  a.z_stride = mixed.stride(0), a.z_stride_h = layer.interleaved ? group : r * s.V;
  a.weight = layer.norm_weight.data, a.weight_fp32 = layer.norm_weight.dtype == DType::fp32;
  a.out_scale = static_cast<const float*>(layer.out_scale.data), a.y = y.data;
  a.norm_activation = static_cast<int32_t>(norm_activation), a.gate_first = !norm_before_gate;
  a.hf_rounding = hf_rounding, a.eps = static_cast<float>(eps);

  // Few rows are spread over the GPU by half heads. Otherwise fp32 states are faster with a block a head, and 16-bit
  // ones with a key head's heads one after another, on H200. Clusters have 8 blocks at most. The bits are the same.
  const bool few = s.N * s.HV < 128 && r <= 4, wide = layer.pool.dtype == DType::fp32 && r <= 8;
  const int kind = compiled_arch(rule.op, mixed.device) < 90 ? 0 : few ? 2 : wide ? 1 : 0;
  const int64_t cluster = kind > 0 ? kind * r : 1, blocks = s.N * s.H * cluster;
  a.H = static_cast<int32_t>(s.H), a.key_heads = divisor(s.H);
  a.cluster = static_cast<uint32_t>(cluster), a.by_cluster = divisor(cluster);
  a.ahead = fetch_distance(mixed.device);
  pick<kernels::gdn_decode_step>(rule.op, mixed.device,
                                 {.S = layer.pool.dtype, .T = dtype, .VFIRST = rule.v_first, .CLUSTER = kind})
      .launch(blocks, a, static_cast<int>(cluster));
}

}  // namespace gdn
