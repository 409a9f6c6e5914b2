#include "gen/kernels.h"
#include "gen/ops.h"

namespace gdn {

Tensor l2norm(const Tensor& x_, double eps) {
  // shapes
  const View x(x_);
  const int64_t D = x.size(-1);

  // checks
  Checks("l2norm")
      .dtype("x", x, {DType::bf16, DType::fp16, DType::fp32})
      .device("x", x)
      .no_grad("x", x)
      .unit_stride("x", x)
      .that(x.dim >= 1 && x.dim <= 4, "x", "1 to 4 dimensions", x)
      .that(D >= 1 && D <= 2048, "x", "a last dimension of 1 to 2048", D)
      .done();

  // pick
  const auto kernel = pick<kernels::l2norm>("l2norm", x.device,
                                            {.T = x.dtype,
                                             .BD = D <= 64    ? 64
                                                   : D <= 128 ? 128
                                                   : D <= 256 ? 256
                                                              : 2048});

  // launch
  Tensor y = empty_like(x, x.dtype);
  const int64_t R = x.numel() / D;
  kernel.launch(ceil_div(R, kernel.tiles.BR), {.x = x.data,
                                               .y = View(y).data,
                                               .R = R,
                                               .n1 = x.dim >= 3 ? x.size(-3) : 1,
                                               .n2 = x.dim >= 2 ? x.size(-2) : 1,
                                               .stride_0 = x.stride(-4),
                                               .stride_1 = x.stride(-3),
                                               .stride_2 = x.stride(-2),
                                               .D = static_cast<int32_t>(D),
                                               .eps = static_cast<float>(eps)});
  return y;
}

}  // namespace gdn
