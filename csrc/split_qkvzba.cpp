#include "gen/kernels.h"
#include "gen/ops.h"
#include "runtime/args.h"

namespace gdn {

std::tuple<Tensor, Tensor, Tensor, Tensor> split_qkvzba(const Tensor& mixed_, const OptTensor& ba_, int64_t H,
                                                        int64_t HV, int64_t K, int64_t V, bool interleaved) {
  // shapes
  const View mixed(mixed_), given(ba_);
  const View& ba = given.defined() ? given : mixed;
  const int64_t T = mixed.size(0), D = 2 * H * K + HV * V, wide = D + HV * V;
  const int64_t size = element_size(mixed.dtype), gate = element_size(ba.dtype);

  // checks
  Checks checks("split_qkvzba");
  checks.heads(H, HV).head_size("K", K).head_size("V", V);
  checks.that(wide <= (1 << 30), "HV", "rows of up to 2^30 columns", HV);
  checks.activation("mixed", mixed, {-1, given.defined() ? wide : wide + 2 * HV},
                    {DType::bf16, DType::fp16, DType::fp32});
  if (given.defined()) checks.activation("ba", given, {T, 2 * HV}, {mixed.dtype, DType::fp32});
  checks.done();

  // pick: items as large as heads, rows and their start allow
  int64_t unit = 16;
  auto divides = [&](int64_t bytes) { return bytes % unit == 0; };
  const int64_t r = HV / H, stride = mixed.stride(0) * size;
  while (unit > size && !(divides(K * size) && divides(r * V * size) && (T <= 1 || divides(stride)) &&
                          divides(static_cast<int64_t>(reinterpret_cast<uintptr_t>(mixed.data)))))
    unit /= 2;
  const auto kernel = pick<kernels::split_qkvzba>("split_qkvzba", mixed.device, {});

  // launch
  Tensor qkv = empty({T, D}, mixed.dtype, mixed.device), z = empty({T, HV, V}, mixed.dtype, mixed.device);
  Tensor b = empty({T, HV}, ba.dtype, mixed.device), a = empty({T, HV}, ba.dtype, mixed.device);
  SplitQkvzbaArgs args{.mixed = mixed.data,
                       .ba = ba.data,
                       .qkv = View(qkv).data,
                       .z = View(z).data,
                       .b = View(b).data,
                       .a = View(a).data,
                       .mixed_stride = stride,
                       .ba_stride = ba.stride(0) * gate,
                       .T = T,
                       .segments = {},
                       .ends = {},
                       .by_token = {},
                       .unit = static_cast<int32_t>(unit),
                       .gate = static_cast<int32_t>(gate)};
  int32_t end = 0;
  // Segment s: `count` groups of `inner` parts, at `base` where groups lie together, else at `offset` in every `group`.
  auto segment = [&](int s, int64_t inner, int64_t base, int64_t offset, int64_t group, int64_t first = 0) {
    const int64_t parts = s < 4 ? unit / size : 1;
    args.segments[s] = {.base = static_cast<int32_t>((first + (interleaved ? offset : base)) / parts),
                        .inner = static_cast<int32_t>(inner / parts),
                        .group = static_cast<int32_t>((interleaved ? group : inner) / parts),
                        .by_inner = divisor(inner / parts)};
    args.ends[s] = end += static_cast<int32_t>(H * inner / parts);
  };
  const int64_t group = 2 * K + 2 * r * V, gates = given.defined() ? 0 : wide;
  segment(0, K, 0, 0, group);
  segment(1, K, H * K, K, group);
  segment(2, r * V, 2 * H * K, 2 * K, group);
  segment(3, r * V, D, 2 * K + r * V, group);
  segment(4, r, 0, 0, 2 * r, gates);
  segment(5, r, HV, r, 2 * r, gates);
  args.by_token = divisor(end);
  kernel.launch(ceil_div(T * end, int64_t{kernel.tiles.THREADS} * kernel.tiles.U), args);
  return {std::move(qkv), std::move(z), std::move(b), std::move(a)};
}

}  // namespace gdn
