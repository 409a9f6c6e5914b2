#include "gen/ops.h"
#include "recurrent.h"

namespace gdn {

void fused_recurrent_gated_delta_rule_packed_decode(const Tensor& mixed_qkv_, const Tensor& a_, const Tensor& b_,
                                                    const Tensor& A_log_, const Tensor& dt_bias_,
                                                    std::optional<double> scale, const Tensor& ssm_pool_,
                                                    const Tensor& out_, const Tensor& ssm_indices_,
                                                    bool use_qk_l2norm_in_kernel, bool state_v_first, int64_t min_slot,
                                                    const OptTensor& pool_scale_, const OptTensor& rounding_seed_) {
  constexpr const char* op = "fused_recurrent_gated_delta_rule_packed_decode";

  // shapes
  const View qkv(mixed_qkv_), a(a_), b(b_), A_log(A_log_), dt_bias(dt_bias_), pool(ssm_pool_), out(out_);
  const PoolSlots slots{.read = View(ssm_indices_), .scales = View(pool_scale_), .seed = View(rounding_seed_)};
  const int64_t B = qkv.size(0), D = qkv.size(1), HV = A_log.size(0);
  const int64_t K = pool.size(state_v_first ? 3 : 2), V = pool.size(state_v_first ? 2 : 3);
  const int64_t H = K >= 1 && D > HV * V ? (D - HV * V) / (2 * K) : 0;
  const RecurrentSizes s(B, H, K, HV, V);

  // checks
  Checks checks(op);
  checks.activation("mixed_qkv", qkv, {-1, -1}, {DType::bf16, DType::fp16, DType::fp32});
  for (const auto& [name, t] : {std::pair("a", &a), std::pair("b", &b)})
    if (t->dim == 3)
      checks.gate(name, *t, {B, H, s.ratio()}, qkv.dtype);
    else
      checks.gate(name, *t, {B, HV}, qkv.dtype);
  for (const auto& [name, t] :
       {std::pair("a", &a), std::pair("b", &b), std::pair("A_log", &A_log), std::pair("dt_bias", &dt_bias)})
    checks.that(t->defined(), name, "a tensor", "None");
  checks.gate("A_log", A_log, {-1}, qkv.dtype)
      .gate("dt_bias", dt_bias, {HV}, qkv.dtype)
      .pool("ssm_pool", pool, {-1, HV, -1, -1}, {DType::fp32, DType::bf16, DType::fp16, DType::fp8})
      .that(K >= 1 && K <= 256, "ssm_pool", "a head size K of 1 to 256", K)
      .that(V >= 1 && V <= 256, "ssm_pool", "a head size V of 1 to 256", V)
      .that(H >= 1 && HV >= 1 && D == 2 * H * K + HV * V && HV % H == 0, "mixed_qkv",
            "2 * H * K + HV * V columns, with HV a multiple of H", D)
      .that(slots.read.dim == 1, "ssm_indices", "one dimension [B]", slots.read);
  slots.check(checks, s, pool, state_v_first);
  if (out.dim == 3)
    checks.pool("out", out, {B, HV, V}, {qkv.dtype});
  else
    checks.pool("out", out, {B, 1, HV, V}, {qkv.dtype});
  checks.done();

  // launch
  FusedRecurrentArgs args = recurrent_args(s, qkv.dtype, scale, use_qk_l2norm_in_kernel);
  const auto columns = [&](int64_t first, int64_t step) {
    return RowsArg{static_cast<char*>(qkv.data) + first * element_size(qkv.dtype), qkv.stride(0), 0, step};
  };
  args.q = columns(0, K), args.k = columns(H * K, K), args.v = columns(2 * H * K, V);
  const auto gate = [&](const View& t) { return gate_arg(t, false, s.ratio(), t.dim == 3); };
  args.g = gate(a), args.beta = gate(b), args.A_log = gate(A_log), args.dt_bias = gate(dt_bias);
  args.o = out.data, args.o_stride = out.stride(0);
  args.h0 = args.ht = pool.data, args.h0_stride = args.ht_stride = pool.stride(0);
  args.slots = pool.size(0), args.min_slot = std::max<int64_t>(min_slot, 0);
  slots.fill(args);
  launch_recurrent(op, s, qkv.device, pool, state_v_first, slots.more(), args);
}

}  // namespace gdn
