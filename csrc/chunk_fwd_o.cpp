#include <cmath>

#include "gen/kernels.h"
#include "gen/ops.h"
#include "runtime/gate.h"
#include "runtime/index.h"

namespace gdn {

Tensor chunk_fwd_o(const Tensor& q_, const Tensor& k_, const Tensor& v_, const Tensor& h_, const OptTensor& g_,
                   std::optional<double> scale, const OptTensor& cu_seqlens_, int64_t chunk_size, bool state_v_first,
                   std::optional<double> gate_base) {
  // shapes
  const View q(q_), k(k_), v(v_), h(h_), g(g_), cu_seqlens(cu_seqlens_);
  const int64_t B = q.size(0), T = q.size(1), H = q.size(2), K = q.size(3), HV = v.size(2), V = v.size(3);
  const bool varlen = cu_seqlens.defined();
  const int64_t N = varlen ? cu_seqlens.size(0) - 1 : B;
  const int64_t NT = varlen ? h.size(1) : ceil_div(T, std::max<int64_t>(chunk_size, 1));

  // checks
  Checks("chunk_fwd_o")
      .activation("q", q, {-1, -1, -1, -1}, {DType::bf16, DType::fp16})
      .activation("k", k, {B, T, H, K}, {q.dtype})
      .activation("v", v, {B, T, -1, -1}, {q.dtype})
      .activation("h", h, {B, NT, HV, state_v_first ? V : K, state_v_first ? K : V}, {q.dtype})
      .gate("g", g, {B, T, HV}, q.dtype)
      .heads(H, HV)
      .head_size("K", K)
      .head_size("V", V)
      .chunk_size(chunk_size)
      .cu_seqlens(cu_seqlens, B)
      .gate_base(gate_base)
      .done();

  // pick
  const bool fast = chunk_size == 64 && K % 16 == 0 && V % 16 == 0 && aligned(q, k, v, h);
  const auto kernel = pick<kernels::chunk_fwd_o>(
      "chunk_fwd_o", q.device,
      {.T = q.dtype, .BT = static_cast<int>(chunk_size), .V_FIRST = fast && state_v_first, .ALIGNED = fast});

  // launch
  Tensor o = empty({B, T, HV, V}, q.dtype, q.device);
  const Gate gate(g);
  const Index offsets(cu_seqlens);
  kernel.launch(chunk_slots(N, T, chunk_size, varlen) * HV * ceil_div(V, kernel.tiles.BV),
                {.q = q.data,
                 .k = k.data,
                 .v = v.data,
                 .h = h.data,
                 .g = gate.data,
                 .cu_seqlens = offsets.data,
                 .o = View(o).data,
                 .N = N,
                 .T = T,
                 .NT = NT,
                 .H = static_cast<int32_t>(H),
                 .HV = static_cast<int32_t>(HV),
                 .K = static_cast<int32_t>(K),
                 .V = static_cast<int32_t>(V),
                 .q_stride_b = q.stride(0),
                 .q_stride_t = q.stride(1),
                 .q_stride_h = q.stride(2),
                 .k_stride_b = k.stride(0),
                 .k_stride_t = k.stride(1),
                 .k_stride_h = k.stride(2),
                 .v_stride_b = v.stride(0),
                 .v_stride_t = v.stride(1),
                 .v_stride_h = v.stride(2),
                 .h_stride_b = h.stride(0),
                 .h_stride_c = h.stride(1),
                 .h_stride_h = h.stride(2),
                 .h_stride_row = h.stride(3),
                 .g_stride_b = gate.stride_b,
                 .g_stride_t = gate.stride_t,
                 .g_stride_h = gate.stride_h,
                 .cu_stride = offsets.stride,
                 .cu_words = offsets.words,
                 .g_kind = gate.kind,
                 .v_first = state_v_first,
                 .scale = static_cast<float>(scale.value_or(1 / std::sqrt(static_cast<double>(K)))),
                 .g_log2 = log2_of_gate(gate_base)});
  return o;
}

}  // namespace gdn
