#include "gen/kernels.h"
#include "gen/ops.h"
#include "runtime/gate.h"
#include "runtime/index.h"

namespace gdn {

Tensor solve_tril(const Tensor& A_, const OptTensor& cu_seqlens_, std::optional<ScalarType> output_dtype) {
  // shapes
  const View A(A_), cu_seqlens(cu_seqlens_);
  const int64_t B = A.size(0), T = A.size(1), H = A.size(2), C = A.size(3);
  const bool varlen = cu_seqlens.defined();
  const int64_t N = varlen ? cu_seqlens.size(0) - 1 : B;
  const DType out = output_dtype.has_value() ? from_scalar_type(*output_dtype) : A.dtype;

  // checks
  Checks("solve_tril")
      .activation("A", A, {-1, -1, -1, -1}, {DType::bf16, DType::fp16, DType::fp32})
      .that(C == 16 || C == 32 || C == 64, "A", "chunks of 16, 32 or 64 (its last dimension)", C)
      .cu_seqlens(cu_seqlens, B)
      .that(out <= DType::fp32, "output_dtype", "bf16, fp16 or fp32", name(out))
      .done();

  // pick
  constexpr int64_t BT = 64;
  const auto kernel = pick<kernels::solve_tril>("solve_tril", A.device, {});

  // launch
  Tensor Ai = empty_like(A, out);
  const Index cu(cu_seqlens);
  kernel.launch(chunk_slots(N, T, BT, varlen) * H, {.A = A.data,
                                                    .Ai = View(Ai).data,
                                                    .cu_seqlens = cu.data,
                                                    .N = N,
                                                    .T = T,
                                                    .H = static_cast<int32_t>(H),
                                                    .C = static_cast<int32_t>(C),
                                                    .A_stride_b = A.stride(0),
                                                    .A_stride_t = A.stride(1),
                                                    .A_stride_h = A.stride(2),
                                                    .cu_stride = cu.stride,
                                                    .cu_words = cu.words,
                                                    .A_kind = state_kind(A),
                                                    .Ai_kind = state_kind(View(Ai))});
  return Ai;
}

}  // namespace gdn
