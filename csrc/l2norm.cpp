#include "gen/kernels.h"
#include "gen/ops.h"
#include "norm_rows.h"
#include "runtime/index.h"

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
  RowDims dims;
  for (int64_t d = 0; d + 1 < x.dim; ++d) dims.add(x.sizes[d], x.strides[d]);
  const NormRows rows = dims.rows();
  const bool whole = lane_bits(D) >= 0 && !rows.many && aligned(x);
  const auto kernel = pick<kernels::l2norm>("l2norm", x.device, {.T = x.dtype, .ALIGNED = whole});

  // launch
  Tensor y = empty_like(x, x.dtype);
  const int64_t THREADS = kernel.tiles.THREADS;
  const int64_t block = whole ? kernel.tiles.U * (THREADS >> lane_bits(D)) : THREADS / 32;  // rows
  kernel.launch(ceil_div(rows.R, std::max<int64_t>(block, 1)),                              // a CPU twin has tiles of 1
                {.x = x.data,
                 .y = View(y).data,
                 .rows = rows,
                 .D = static_cast<int32_t>(D),
                 .lane_bits = lane_bits(D),
                 .eps = static_cast<float>(eps)});
  return y;
}

}  // namespace gdn
