#include "conv.h"
#include "gen/ops.h"

namespace gdn {

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> conv_pack_gdn_decode_inputs(
    const Tensor& mixed_qkv, const Tensor& z_, const Tensor& a_, const Tensor& b_, const Tensor& conv_states,
    const Tensor& weight_, const OptTensor& bias_, const Tensor& cache_indices, int64_t activation, int64_t H,
    int64_t K, int64_t HV, int64_t V, int64_t min_slot, const OptTensor& out_q, const OptTensor& out_k,
    const OptTensor& out_v, const OptTensor& out_z, const OptTensor& out_a, const OptTensor& out_b) {
  constexpr const char* op = "conv_pack_gdn_decode_inputs";

  // shapes
  const View x(mixed_qkv), z(z_), a(a_), b(b_), state(conv_states), weight(weight_), bias(bias_),
      indices(cache_indices);
  const int64_t B = x.size(0), keys = H * K, values = HV * V, D = 2 * keys + values;
  const bool flat = z.dim == 2;  // [B, HV * V], otherwise [B, HV, V]
  const Conv conv{.op = op,
                  .x_name = "mixed_qkv",
                  .x = x,
                  .dim_b = 0,
                  .dim_t = -1,
                  .dim_d = 1,
                  .weight = weight,
                  .bias = bias,
                  .state_name = "conv_states",
                  .state = state,
                  .indices_name = "cache_indices",
                  .indices = indices,
                  .cu_seqlens = {},
                  .has_state = {},
                  .activation = activation,
                  .min_slot = min_slot,
                  .history = true};

  // checks
  Checks checks(op);
  checks.heads(H, HV).head_size("K", K).head_size("V", V).that(D <= (1 << 30), "HV", "rows of up to 2^30 columns", HV);
  checks.shape("mixed_qkv", x, {-1, D});
  if (x.dim == 2) conv.check(checks);
  checks.that(indices.defined(), "cache_indices", "a tensor", indices);
  if (flat)
    checks.shape("z", z, {B, values});
  else
    checks.shape("z", z, {B, HV, V});
  checks.shape("a", a, {B, HV}).shape("b", b, {B, HV});
  const View* const copied[] = {&z, &a, &b};
  const char* const names[] = {"z", "a", "b"};
  for (int i = 0; i < 3; ++i)
    checks.dtype(names[i], *copied[i], {x.dtype, DType::fp32})
        .device(names[i], *copied[i])
        .no_grad(names[i], *copied[i]);
  checks.out("out_q", View(out_q), {B, 1, H, K}, x.dtype)
      .out("out_k", View(out_k), {B, 1, H, K}, x.dtype)
      .out("out_v", View(out_v), {B, 1, HV, V}, x.dtype)
      .out("out_z", View(out_z), {B, HV, V}, z.dtype)
      .out("out_a", View(out_a), {B, HV}, a.dtype)
      .out("out_b", View(out_b), {B, HV}, b.dtype)
      .done();

  // pick
  auto stride = [&](const View& t) { return B > 1 ? t.stride(0) : 0; };
  const int64_t z_stride_h = flat ? V * z.stride(1) : HV > 1 ? z.stride(1) : 0, z_stride_v = z.stride(-1);
  const bool packs = x.dtype != DType::fp32 && conv.W() == 4 && K % 4 == 0 && V % 4 == 0 &&
                     in_packs(x, x.stride(1), {stride(x)}, 4) && z.dtype == x.dtype &&
                     in_packs(z, z_stride_v, {stride(z), z_stride_h}, 4);
  const int VEC = packs ? 4 : 1;
  const auto kernel = pick<kernels::conv_pack_gdn_decode_inputs>(
      op, x.device, {.T = x.dtype, .W = static_cast<int>(conv.W()), .VEC = VEC});

  // launch
  Tensor q = result(out_q, {B, 1, H, K}, x.dtype, x.device), k = result(out_k, {B, 1, H, K}, x.dtype, x.device);
  Tensor v = result(out_v, {B, 1, HV, V}, x.dtype, x.device), z_to = result(out_z, {B, HV, V}, z.dtype, x.device);
  Tensor a_to = result(out_a, {B, HV}, a.dtype, x.device), b_to = result(out_b, {B, HV}, b.dtype, x.device);
  auto copy = [&](const View& from, const Tensor& to, int64_t stride_h, int64_t stride_v) -> CopyArg {
    return {from.data, View(to).data, stride(from), stride_h, stride_v, from.dtype == DType::fp32};
  };
  kernel.launch(ceil_div(B * ((D + values) / VEC + 2 * HV), kernel.tiles.THREADS),
                {.x = x.data,
                 .x_stride_b = stride(x),
                 .x_stride_d = x.stride(1),
                 .q = View(q).data,
                 .k = View(k).data,
                 .v = View(v).data,
                 .z = copy(z, z_to, z_stride_h, z_stride_v),
                 .a = copy(a, a_to, a.stride(1), 0),
                 .b = copy(b, b_to, b.stride(1), 0),
                 .filter = filter_arg(weight, bias, x.dtype, activation, VEC),
                 .state = lines_arg(state, x.dtype, VEC, conv.W() - 1),
                 .indices = index_arg(indices),
                 .min_slot = min_slot > 0 ? min_slot : 0,
                 .B = B,
                 .keys = static_cast<int32_t>(keys),
                 .values = static_cast<int32_t>(values),
                 .HV = static_cast<int32_t>(HV),
                 .V = static_cast<int32_t>(V),
                 .W = static_cast<int32_t>(conv.W()),
                 .by_V = divisor(std::max<int64_t>(V, 1))});
  return {std::move(q), std::move(k), std::move(v), std::move(z_to), std::move(a_to), std::move(b_to)};
}

}  // namespace gdn
