#include "gen/kernels.h"
#include "gen/ops.h"
#include "runtime/index.h"

namespace gdn {

Tensor prepare_chunk_offsets(const Tensor& cu_seqlens_, int64_t chunk_size) {
  // shapes
  const View cu_seqlens(cu_seqlens_);
  const int64_t N = cu_seqlens.size(0) - 1;

  // checks
  Checks("prepare_chunk_offsets")
      .cu_seqlens(cu_seqlens, 1)
      .that(chunk_size >= 1 && chunk_size <= INT32_MAX, "chunk_size", "at least 1", chunk_size)
      .done();

  // pick
  const auto kernel = pick<kernels::prepare_chunk_offsets>("prepare_chunk_offsets", cu_seqlens.device, {});

  // launch
  Tensor offsets = empty({N + 1}, cu_seqlens.dtype, cu_seqlens.device);
  const Index cu(cu_seqlens);
  kernel.launch(N / kernel.tiles.BN + 1, {.cu_seqlens = cu.data,
                                          .offsets = View(offsets).data,
                                          .N = N,
                                          .T = kUnknownTokens,
                                          .C = chunk_size,
                                          .cu_stride = cu.stride,
                                          .cu_words = cu.words,
                                          .offset_words = cu.words});
  return offsets;
}

}  // namespace gdn
