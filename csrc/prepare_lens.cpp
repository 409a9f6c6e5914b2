#include "gen/kernels.h"
#include "gen/ops.h"
#include "runtime/index.h"

namespace gdn {

Tensor prepare_lens(const Tensor& cu_seqlens_) {
  // shapes
  const View cu_seqlens(cu_seqlens_);
  const int64_t N = cu_seqlens.size(0) - 1;

  // checks
  Checks("prepare_lens").cu_seqlens(cu_seqlens, 1).done();

  // pick
  const auto kernel = pick<kernels::prepare_lens>("prepare_lens", cu_seqlens.device, {});

  // launch
  Tensor lens = empty({N}, cu_seqlens.dtype, cu_seqlens.device);
  const Index cu(cu_seqlens);
  kernel.launch(ceil_div(N, kernel.tiles.BN), {.cu_seqlens = cu.data,
                                               .lens = View(lens).data,
                                               .N = N,
                                               .T = kUnknownTokens,
                                               .cu_stride = cu.stride,
                                               .cu_words = cu.words});
  return lens;
}

}  // namespace gdn
