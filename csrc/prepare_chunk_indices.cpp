#include "gen/kernels.h"
#include "gen/ops.h"
#include "runtime/index.h"

namespace gdn {

Tensor prepare_chunk_indices(const Tensor& cu_seqlens_, int64_t chunk_size, int64_t total_tokens) {
  // shapes
  const View cu_seqlens(cu_seqlens_);
  const int64_t N = cu_seqlens.size(0) - 1;

  // checks
  Checks("prepare_chunk_indices")
      .cu_seqlens(cu_seqlens, 1)
      .that(chunk_size >= 1 && chunk_size <= INT32_MAX, "chunk_size", "at least 1", chunk_size)
      .that(total_tokens >= 0 && total_tokens <= kUnknownTokens, "total_tokens", "at least 0", total_tokens)
      .done();

  // pick
  constexpr const char* op = "prepare_chunk_indices";
  const auto count = pick<kernels::prepare_chunk_offsets>(op, cu_seqlens.device, {});
  const auto fill = pick<kernels::prepare_chunk_indices>(op, cu_seqlens.device, {});

  // launch
  const int64_t R = ceil_div(total_tokens, chunk_size) + N;
  Tensor indices = empty({R, 2}, cu_seqlens.dtype, cu_seqlens.device);
  Tensor offsets = empty({N + 1}, DType::i64, cu_seqlens.device);
  const Index cu(cu_seqlens);
  count.launch(N / count.tiles.BN + 1, {.cu_seqlens = cu.data,
                                        .offsets = View(offsets).data,
                                        .N = N,
                                        .T = total_tokens,
                                        .C = chunk_size,
                                        .cu_stride = cu.stride,
                                        .cu_words = cu.words,
                                        .offset_words = 2});
  fill.launch(ceil_div(R, fill.tiles.BR),
              {.offsets = View(offsets).data, .indices = View(indices).data, .N = N, .R = R, .index_words = cu.words});
  return indices;
}

}  // namespace gdn
