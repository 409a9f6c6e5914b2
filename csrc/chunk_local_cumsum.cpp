#include "gen/kernels.h"
#include "gen/ops.h"
#include "runtime/gate.h"
#include "runtime/index.h"

namespace gdn {

Tensor chunk_local_cumsum(const Tensor& g_, int64_t chunk_size, bool reverse, std::optional<double> scale,
                          const OptTensor& cu_seqlens_) {
  // shapes
  const View g(g_), cu_seqlens(cu_seqlens_);
  const bool vector = g.dim == 4;
  const int64_t B = g.size(0), T = g.size(1), H = g.size(2), S = vector ? g.size(3) : 1;
  const bool varlen = cu_seqlens.defined();
  const int64_t N = varlen ? cu_seqlens.size(0) - 1 : B;

  // checks
  Checks("chunk_local_cumsum")
      .that(g.dim == 3 || vector, "g", "shape [B, T, H] or [B, T, H, S]", g)
      .dtype("g", g, {DType::bf16, DType::fp16, DType::fp32})
      .device("g", g)
      .no_grad("g", g)
      .that(chunk_size == 16 || chunk_size == 32 || chunk_size == 64 || chunk_size == 128, "chunk_size",
            "16, 32, 64 or 128", chunk_size)
      .cu_seqlens(cu_seqlens, B)
      .done();

  // pick
  const auto kernel =
      pick<kernels::chunk_local_cumsum>("chunk_local_cumsum", g.device, {.BT = static_cast<int>(chunk_size)});

  // launch
  Tensor y = empty_like(g, DType::fp32);
  const Index offsets(cu_seqlens);
  kernel.launch(chunk_slots(N, T, chunk_size, varlen) * ceil_div(H * S, kernel.tiles.BM),
                {.g = g.data,
                 .y = View(y).data,
                 .cu_seqlens = offsets.data,
                 .N = N,
                 .T = T,
                 .H = static_cast<int32_t>(H),
                 .S = static_cast<int32_t>(S),
                 .g_stride_b = g.stride(0),
                 .g_stride_t = g.stride(1),
                 .g_stride_h = g.stride(2),
                 .g_stride_s = vector ? g.stride(3) : 0,
                 .cu_stride = offsets.stride,
                 .cu_words = offsets.words,
                 .g_kind = state_kind(g),
                 .reverse = reverse,
                 .scale = static_cast<float>(scale.value_or(1))});
  return y;
}

}  // namespace gdn
