// A layer's decode step by the launches of single ops.
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

}  // namespace gdn
