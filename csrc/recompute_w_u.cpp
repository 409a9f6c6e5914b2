#include "gen/kernels.h"
#include "gen/ops.h"
#include "runtime/gate.h"
#include "runtime/index.h"

namespace gdn {

std::tuple<Tensor, Tensor> recompute_w_u(const Tensor& k_, const Tensor& v_, const Tensor& beta_, const Tensor& A_,
                                         const OptTensor& g_, const OptTensor& cu_seqlens_,
                                         std::optional<double> gate_base) {
  // shapes
  const View k(k_), v(v_), beta(beta_), A(A_), g(g_), cu_seqlens(cu_seqlens_);
  const int64_t B = k.size(0), T = k.size(1), H = k.size(2), K = k.size(3);
  const int64_t HV = v.size(2), V = v.size(3), BT = A.size(3);
  const bool varlen = cu_seqlens.defined();
  const int64_t N = varlen ? cu_seqlens.size(0) - 1 : B;

  // checks
  Checks("recompute_w_u")
      .activation("k", k, {-1, -1, -1, -1}, {DType::bf16, DType::fp16})
      .activation("v", v, {B, T, -1, -1}, {k.dtype})
      .that(beta.defined(), "beta", "a tensor", "None")
      .gate("beta", beta, {B, T, HV}, k.dtype)
      .activation("A", A, {B, T, HV, -1}, {k.dtype, DType::fp32})
      .gate("g", g, {B, T, HV}, k.dtype)
      .heads(H, HV)
      .head_size("K", K)
      .head_size("V", V)
      .that(BT == 16 || BT == 32 || BT == 64, "A", "chunks of 16, 32 or 64 (its last dimension)", BT)
      .cu_seqlens(cu_seqlens, B)
      .gate_base(gate_base)
      .done();

  // pick
  const bool fast = BT == 64 && K % 16 == 0 && V % 16 == 0 && aligned(k, v, A);
  const auto kernel = pick<kernels::recompute_w_u>("recompute_w_u", k.device,
                                                   {.T = k.dtype, .BT = static_cast<int>(BT), .ALIGNED = fast});

  // launch
  Tensor w = empty({B, T, HV, K}, k.dtype, k.device), u = empty({B, T, HV, V}, k.dtype, k.device);
  const Gate gate(g), strength(beta);
  const Index offsets(cu_seqlens);
  kernel.launch(chunk_slots(N, T, BT, varlen) * HV, {.k = k.data,
                                                     .v = v.data,
                                                     .A = A.data,
                                                     .g = gate.data,
                                                     .beta = strength.data,
                                                     .cu_seqlens = offsets.data,
                                                     .w = View(w).data,
                                                     .u = View(u).data,
                                                     .N = N,
                                                     .T = T,
                                                     .H = static_cast<int32_t>(H),
                                                     .HV = static_cast<int32_t>(HV),
                                                     .K = static_cast<int32_t>(K),
                                                     .V = static_cast<int32_t>(V),
                                                     .k_stride_b = k.stride(0),
                                                     .k_stride_t = k.stride(1),
                                                     .k_stride_h = k.stride(2),
                                                     .v_stride_b = v.stride(0),
                                                     .v_stride_t = v.stride(1),
                                                     .v_stride_h = v.stride(2),
                                                     .A_stride_b = A.stride(0),
                                                     .A_stride_t = A.stride(1),
                                                     .A_stride_h = A.stride(2),
                                                     .g_stride_b = gate.stride_b,
                                                     .g_stride_t = gate.stride_t,
                                                     .g_stride_h = gate.stride_h,
                                                     .beta_stride_b = strength.stride_b,
                                                     .beta_stride_t = strength.stride_t,
                                                     .beta_stride_h = strength.stride_h,
                                                     .cu_stride = offsets.stride,
                                                     .cu_words = offsets.words,
                                                     .A_is_fp32 = A.dtype == DType::fp32,
                                                     .g_kind = gate.kind,
                                                     .beta_kind = strength.kind,
                                                     .g_log2 = log2_of_gate(gate_base)});
  return {std::move(w), std::move(u)};
}

}  // namespace gdn
