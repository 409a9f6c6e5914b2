#include "gen/kernels.h"
#include "gen/ops.h"
#include "runtime/gate.h"
#include "runtime/index.h"

namespace gdn {

std::tuple<Tensor, Tensor, Tensor> chunk_fwd_h(const Tensor& k_, const Tensor& w_, const Tensor& u_,
                                               const OptTensor& g_, const OptTensor& initial_state_,
                                               bool output_final_state, int64_t chunk_size, bool save_new_value,
                                               const OptTensor& cu_seqlens_, bool state_v_first,
                                               std::optional<double> gate_base) {
  // shapes
  const View k(k_), w(w_), u(u_), g(g_), h0(initial_state_), cu_seqlens(cu_seqlens_);
  const int64_t B = k.size(0), T = k.size(1), H = k.size(2), K = k.size(3), HV = u.size(2), V = u.size(3);
  const int64_t S0 = state_v_first ? V : K, S1 = state_v_first ? K : V;
  const bool varlen = cu_seqlens.defined();
  const int64_t N = varlen ? cu_seqlens.size(0) - 1 : B;

  // checks
  Checks("chunk_fwd_h")
      .activation("k", k, {-1, -1, -1, -1}, {DType::bf16, DType::fp16})
      .activation("w", w, {B, T, HV, K}, {k.dtype})
      .activation("u", u, {B, T, -1, -1}, {k.dtype})
      .gate("g", g, {B, T, HV}, k.dtype)
      .state("initial_state", h0, {N, HV, S0, S1})
      .heads(H, HV)
      .head_size("K", K)
      .head_size("V", V)
      .chunk_size(chunk_size)
      .cu_seqlens(cu_seqlens, B)
      .gate_base(gate_base)
      .done();

  // pick
  const bool fast = chunk_size == 64 && (K == 64 || K == 128) && V % 16 == 0 && aligned(k, w, u, h0);
  const int BK = fast ? static_cast<int>(K) : chunk_size == 64 && K <= 128 ? 128 : 256;
  const auto kernel = pick<kernels::chunk_fwd_h>(
      "chunk_fwd_h", k.device, {.T = k.dtype, .BT = static_cast<int>(chunk_size), .BK = BK, .ALIGNED = fast});

  // launch
  const int64_t chunks = ceil_div(T, chunk_size), NT = varlen ? chunks + N : chunks;
  Tensor h = empty({B, NT, HV, S0, S1}, k.dtype, k.device);
  Tensor v_new = save_new_value ? empty({B, T, HV, V}, k.dtype, k.device) : empty({0}, k.dtype, k.device);
  Tensor ht = output_final_state ? empty({N, HV, S0, S1}, DType::fp32, k.device) : empty({0}, DType::fp32, k.device);
  const Gate gate(g);
  const Index offsets(cu_seqlens);
  const int64_t fillers = varlen ? std::min<int64_t>(ceil_div(NT * HV, 8), 1024) : 0;
  kernel.launch(N * HV * ceil_div(V, kernel.tiles.BV) + fillers, {.k = k.data,
                                                                  .w = w.data,
                                                                  .u = u.data,
                                                                  .g = gate.data,
                                                                  .h0 = h0.data,
                                                                  .cu_seqlens = offsets.data,
                                                                  .h = View(h).data,
                                                                  .v_new = View(v_new).data,
                                                                  .ht = View(ht).data,
                                                                  .N = N,
                                                                  .T = T,
                                                                  .rows = B * NT,
                                                                  .fillers = fillers,
                                                                  .H = static_cast<int32_t>(H),
                                                                  .HV = static_cast<int32_t>(HV),
                                                                  .K = static_cast<int32_t>(K),
                                                                  .V = static_cast<int32_t>(V),
                                                                  .k_stride_b = k.stride(0),
                                                                  .k_stride_t = k.stride(1),
                                                                  .k_stride_h = k.stride(2),
                                                                  .w_stride_b = w.stride(0),
                                                                  .w_stride_t = w.stride(1),
                                                                  .w_stride_h = w.stride(2),
                                                                  .u_stride_b = u.stride(0),
                                                                  .u_stride_t = u.stride(1),
                                                                  .u_stride_h = u.stride(2),
                                                                  .g_stride_b = gate.stride_b,
                                                                  .g_stride_t = gate.stride_t,
                                                                  .g_stride_h = gate.stride_h,
                                                                  .h0_stride_n = h0.stride(0),
                                                                  .h0_stride_h = h0.stride(1),
                                                                  .h0_stride_row = h0.stride(2),
                                                                  .cu_stride = offsets.stride,
                                                                  .cu_words = offsets.words,
                                                                  .g_kind = gate.kind,
                                                                  .h0_kind = state_kind(h0),
                                                                  .v_first = state_v_first,
                                                                  .save_new_value = save_new_value,
                                                                  .save_final_state = output_final_state,
                                                                  .g_log2 = log2_of_gate(gate_base)});
  return {std::move(h), std::move(v_new), std::move(ht)};
}

}  // namespace gdn
