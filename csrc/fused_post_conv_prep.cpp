#include "gen/kernels.h"
#include "gen/ops.h"
#include "runtime/args.h"

namespace gdn {

namespace {

// t [HV], [T, HV], or [T, H, r].
HeadGateArg head_gate_arg(const View& t, int64_t r) {
  const bool grouped = t.dim == 3;
  return {t.data, t.dim > 1 ? t.stride(0) : 0, grouped ? t.stride(1) : r * t.stride(-1), t.stride(-1),
          static_cast<int32_t>(t.dtype)};
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> fused_post_conv_prep(const Tensor& qkv_, const Tensor& a_,
                                                                        const Tensor& b_, const Tensor& A_log_,
                                                                        const Tensor& dt_bias_, int64_t H, int64_t K,
                                                                        int64_t V, bool use_qk_l2norm,
                                                                        bool output_g_exp) {
  // shapes
  const View qkv(qkv_), a(a_), b(b_), A_log(A_log_), dt_bias(dt_bias_);
  const int64_t T = qkv.size(0), HV = A_log.size(0), r = H > 0 ? std::max<int64_t>(HV / H, 1) : 1;
  const int64_t size = element_size(qkv.dtype), keys = 2 * H * K, values = HV * V;

  // checks
  Checks checks("fused_post_conv_prep");
  checks.heads(H, HV).head_size("K", K).head_size("V", V);
  checks.that(keys + values <= (1 << 30), "A_log", "heads of up to 2^30 columns", HV);
  checks.activation("qkv", qkv, {-1, keys + values}, {DType::bf16, DType::fp16, DType::fp32});
  auto per_token = [&](const char* name, const View& t) {
    if (t.dim == 3)
      checks.gate(name, t, {T, H, r}, qkv.dtype);
    else
      checks.gate(name, t, {T, HV}, qkv.dtype);
  };
  per_token("a", a), per_token("b", b);
  checks.gate("A_log", A_log, {-1}, qkv.dtype).gate("dt_bias", dt_bias, {HV}, qkv.dtype);
  checks.that(a.defined(), "a", "a tensor", "None").that(b.defined(), "b", "a tensor", "None");
  checks.that(A_log.defined(), "A_log", "a tensor", "None").that(dt_bias.defined(), "dt_bias", "a tensor", "None");
  checks.done();

  // pick: 16 bytes a lane where rows, heads and their start are multiples of that
  const int64_t lanes = K * size / 16, items = ceil_div((keys + values) * size / 16 + HV, 32) * 32;
  const bool whole = K * size % 16 == 0 && (lanes & (lanes - 1)) == 0 && lanes <= 32 && values * size % 16 == 0;
  const bool aligned =
      whole && reinterpret_cast<uintptr_t>(qkv.data) % 16 == 0 && (T <= 1 || qkv.stride(0) * size % 16 == 0);
  const auto kernel =
      pick<kernels::fused_post_conv_prep>("fused_post_conv_prep", qkv.device, {.T = qkv.dtype, .ALIGNED = aligned});

  // launch
  Tensor q = empty({T, H, K}, qkv.dtype, qkv.device), k = empty({T, H, K}, qkv.dtype, qkv.device);
  Tensor v = empty({T, HV, V}, qkv.dtype, qkv.device);
  Tensor g = empty({T, HV}, DType::fp32, qkv.device), beta = empty({T, HV}, DType::fp32, qkv.device);
  const int64_t programs = aligned ? ceil_div(T * items, int64_t{kernel.tiles.THREADS} * kernel.tiles.U)
                                   : ceil_div(T * (2 * H + HV + ceil_div(HV, 32)), kernel.tiles.WARPS);
  kernel.launch(programs, {.qkv = qkv.data,
                           .q = View(q).data,
                           .k = View(k).data,
                           .v = View(v).data,
                           .g = static_cast<float*>(View(g).data),
                           .beta = static_cast<float*>(View(beta).data),
                           .a = head_gate_arg(a, r),
                           .b = head_gate_arg(b, r),
                           .A_log = head_gate_arg(A_log, r),
                           .dt_bias = head_gate_arg(dt_bias, r),
                           .T = T,
                           .qkv_stride = qkv.stride(0),
                           .H = static_cast<int32_t>(H),
                           .HV = static_cast<int32_t>(HV),
                           .K = static_cast<int32_t>(K),
                           .V = static_cast<int32_t>(V),
                           .r = static_cast<int32_t>(r),
                           .l2norm = use_qk_l2norm,
                           .g_linear = output_g_exp,
                           .lanes = static_cast<int32_t>(lanes),
                           .qk_end = static_cast<int32_t>(keys * size / 16),
                           .v_end = static_cast<int32_t>((keys + values) * size / 16),
                           .items = static_cast<int32_t>(items),
                           .by_items = divisor(items)});
  return {std::move(q), std::move(k), std::move(v), std::move(g), std::move(beta)};
}

}  // namespace gdn
