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

// Rows of one token in a projection's columns from `column` on: [B, columns], or [B, 1, columns].
inline RowsArg columns_arg(const View& t, int64_t column, int64_t stride_h) {
  return {static_cast<char*>(t.data) + column * element_size(t.dtype), t.stride(0), 0, stride_h};
}

// What the kernel of one launch takes: all but how heads are spread over blocks.
inline GdnDecodeStepArgs layer_args(const Layer& layer, const Conv& conv, const RecurrentUpdate& rule, double eps,
                                    int64_t norm_activation, bool norm_before_gate, bool hf_rounding, const View& y) {
  const RecurrentSizes& s = rule.s;
  const View &mixed = layer.mixed, &ba = layer.one_row ? mixed : layer.ba;
  const DType dtype = mixed.dtype;
  const int64_t W = layer.conv_weight.size(1), r = layer.r;
  const int64_t b_at = layer.one_row ? layer.D + s.HV * s.V : 0, a_at = b_at + (layer.interleaved ? r : s.HV);
  const auto gate = [&](int64_t at) {
    return GateArg{columns_arg(ba, at, 1), layer.interleaved ? 2 * r : r, static_cast<int32_t>(dtype)};
  };
  GdnDecodeStepArgs a{};
  a.rule = rule.args(dtype);
  a.rule.g = gate(a_at), a.rule.beta = gate(b_at);
  a.rule.A_log = gate_arg(layer.A_log, false, r), a.rule.dt_bias = gate_arg(layer.dt_bias, false, r);

  // Two channels are moved at once, of four taps, where weights, rows and lines allow it.
  a.filter = filter_arg(layer.conv_weight, layer.conv_bias, dtype, conv.activation, 8);
  const bool pairs = W == 4 && a.filter.packed && in_packs(mixed, 1, {mixed.stride(0)}, 2);
  a.lines = lines_arg(layer.conv_states, dtype, pairs ? 4 : 1, W - 1);
  a.conv_slots = index_arg(conv.indices);
  a.W = static_cast<int32_t>(W);

  const int64_t values = r * s.V, group = 2 * s.K + 2 * values;  // columns of an interleaved key head's group
  const auto heads = [&](int64_t flat, int64_t width, int64_t interleaved) {
    return layer.interleaved ? columns_arg(mixed, interleaved, group) : columns_arg(mixed, flat, width);
  };
  a.rule.q = heads(0, s.K, 0), a.rule.k = heads(s.H * s.K, s.K, s.K);
  a.rule.v = heads(2 * s.H * s.K, values, 2 * s.K), a.z = heads(layer.D, values, 2 * s.K + values);
  a.weight = layer.norm_weight.data, a.weight_fp32 = layer.norm_weight.dtype == DType::fp32;
  a.out_scale = static_cast<const float*>(layer.out_scale.data), a.y = y.data;
  a.norm_activation = static_cast<int32_t>(norm_activation), a.gate_first = !norm_before_gate;
  a.hf_rounding = hf_rounding, a.eps = static_cast<float>(eps);
  a.H = static_cast<int32_t>(s.H), a.key_heads = divisor(s.H);
  return a;
}

// Whether one launch can do it: a plain step of one token a row, on states of K = V = 128 that are moved 16 bytes at a
// time.
inline bool fused(const Layer& layer, const Conv& conv, const RecurrentUpdate& rule) {
  return !runs_cpu_twins(layer.mixed.device) && layer.K == 128 && layer.V == 128 && layer.pool.dtype != DType::fp8 &&
         states_aligned(layer.pool) && !rule.slots.seed.defined() && rule.s.T == 1 && !rule.s.packed &&
         layer.mixed.dtype != DType::fp32 && rule.update_state && !rule.slots.special() && !conv.windows.defined();
}

inline void launch_fused(const Layer& layer, const RecurrentUpdate& rule, GdnDecodeStepArgs a) {
  const RecurrentSizes& s = rule.s;
  const Device device = layer.mixed.device;
  // A block a head; few fp32 rows are spread over the GPU by half heads. Clusters have 8 blocks at most: beyond, and
  // where there are none, a key head's heads come one after another. The bits are the same.
  const int64_t r = layer.r, bytes = rule.s.K * rule.s.V * element_size(layer.pool.dtype);
  const bool few = s.N * s.HV < 128 && r <= 4 && layer.pool.dtype == DType::fp32;
  const int kind = compiled_arch(rule.op, device) < 90 ? 0 : few ? 2 : r <= 8 ? 1 : 0;
  const int64_t cluster = kind > 0 ? kind * r : 1;
  a.cluster = static_cast<uint32_t>(cluster), a.by_cluster = divisor(cluster);
  a.ahead = fetch_distance(device, bytes * r / cluster);
  // Blocks with states in registers, two a multiprocessor, look twice as far where not all are at work at once.
  if (bytes * r > cluster << 15 && s.N * s.HV > 2 * multiprocessors(device)) a.ahead *= 2;
  pick<kernels::gdn_decode_step>(
      rule.op, device, {.S = layer.pool.dtype, .T = layer.mixed.dtype, .VFIRST = rule.v_first, .CLUSTER = kind})
      .launch(s.N * s.H * cluster, a, static_cast<int>(cluster));
}

// y of a layer's step, in as few launches as there are kernels for it.
inline void launch_layer(const Layer& layer, const Tensor& mixed_qkvz, const OptTensor& ba, const Conv& conv,
                         const RecurrentUpdate& rule, double eps, int64_t norm_activation, bool norm_before_gate,
                         bool hf_rounding, const View& y) {
  if (fused(layer, conv, rule))
    return launch_fused(layer, rule,
                        layer_args(layer, conv, rule, eps, norm_activation, norm_before_gate, hf_rounding, y));
  composed(layer, mixed_qkvz, ba, conv, rule, eps, norm_activation, norm_before_gate, hf_rounding, y);
}

}  // namespace gdn
