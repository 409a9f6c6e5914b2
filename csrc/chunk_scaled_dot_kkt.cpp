#include "gen/kernels.h"
#include "gen/ops.h"
#include "runtime/gate.h"
#include "runtime/index.h"

namespace gdn {

Tensor chunk_scaled_dot_kkt(const Tensor& k_, const OptTensor& g_, const OptTensor& beta_, const OptTensor& cu_seqlens_,
                            int64_t chunk_size, std::optional<double> gate_base) {
  // shapes
  const View k(k_), g(g_), beta(beta_), cu_seqlens(cu_seqlens_);
  const int64_t B = k.size(0), T = k.size(1), H = k.size(2), K = k.size(3);
  const int64_t HV = beta.defined() ? beta.size(2) : g.defined() ? g.size(2) : H;
  const bool varlen = cu_seqlens.defined();
  const int64_t N = varlen ? cu_seqlens.size(0) - 1 : B;

  // checks
  Checks("chunk_scaled_dot_kkt")
      .activation("k", k, {-1, -1, -1, -1}, {DType::bf16, DType::fp16})
      .gate("g", g, {B, T, HV}, k.dtype)
      .gate("beta", beta, {B, T, HV}, k.dtype)
      .heads(H, HV)
      .head_size("K", K)
      .that(chunk_size == 16 || chunk_size == 32 || chunk_size == 64, "chunk_size", "16, 32 or 64", chunk_size)
      .cu_seqlens(cu_seqlens, B)
      .gate_base(gate_base)
      .done();

  // pick
  constexpr int64_t BT = 64;
  const bool fast = chunk_size == BT && K % 16 == 0 && aligned(k);
  const auto kernel =
      pick<kernels::chunk_scaled_dot_kkt>("chunk_scaled_dot_kkt", k.device, {.T = k.dtype, .ALIGNED = fast});

  // launch
  Tensor A = empty({B, T, HV, chunk_size}, DType::fp32, k.device);
  const Gate gate(g), strength(beta);
  const Index offsets(cu_seqlens);
  kernel.launch(chunk_slots(N, T, BT, varlen) * HV, {.k = k.data,
                                                     .g = gate.data,
                                                     .beta = strength.data,
                                                     .cu_seqlens = offsets.data,
                                                     .A = View(A).data,
                                                     .N = N,
                                                     .T = T,
                                                     .H = static_cast<int32_t>(H),
                                                     .HV = static_cast<int32_t>(HV),
                                                     .K = static_cast<int32_t>(K),
                                                     .C = static_cast<int32_t>(chunk_size),
                                                     .k_stride_b = k.stride(0),
                                                     .k_stride_t = k.stride(1),
                                                     .k_stride_h = k.stride(2),
                                                     .g_stride_b = gate.stride_b,
                                                     .g_stride_t = gate.stride_t,
                                                     .g_stride_h = gate.stride_h,
                                                     .beta_stride_b = strength.stride_b,
                                                     .beta_stride_t = strength.stride_t,
                                                     .beta_stride_h = strength.stride_h,
                                                     .cu_stride = offsets.stride,
                                                     .cu_words = offsets.words,
                                                     .g_kind = gate.kind,
                                                     .beta_kind = strength.kind,
                                                     .g_log2 = log2_of_gate(gate_base)});
  return A;
}

}  // namespace gdn
