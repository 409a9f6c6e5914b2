#include "gen/ops.h"
#include "rings.h"

namespace gdn {

Tensor fused_recurrent_gated_delta_rule_ring(const Tensor& q_, const Tensor& k_, const Tensor& v_, const OptTensor& g_,
                                             const OptTensor& beta_, const OptTensor& A_log_, const OptTensor& a_,
                                             const OptTensor& dt_bias_, const OptTensor& b_, const Tensor& ssm_pool_,
                                             const Tensor& ring_k_, const Tensor& ring_u_, const Tensor& ring_g_,
                                             const Tensor& ring_lengths_, const Tensor& ssm_indices_,
                                             const OptTensor& cu_seqlens_, std::optional<double> scale,
                                             bool use_qk_l2norm_in_kernel, bool state_v_first, int64_t min_slot,
                                             const OptTensor& out) {
  constexpr const char* op = "fused_recurrent_gated_delta_rule_ring";

  // shapes
  const View q(q_), k(k_), v(v_), pool(ssm_pool_), lengths(ring_lengths_), ssm_indices(ssm_indices_);
  const View cu_seqlens(cu_seqlens_);
  const RecurrentGates gates{View(g_), View(beta_), View(A_log_), View(a_), View(dt_bias_), View(b_)};
  const Rings rings{View(ring_k_), View(ring_u_), View(ring_g_), pool.size(0)};
  const RecurrentSizes s(q, v, cu_seqlens);

  // checks
  Checks checks(op);
  check_tokens(checks, s, q, k, v, cu_seqlens);
  gates.check(checks, s, q.dtype);
  check_frozen(checks, s, pool, state_v_first);
  rings.check(checks, s);
  checks.index("ring_lengths", lengths, {rings.slots})
      .index("ssm_indices", ssm_indices, {s.N})
      .out("out", View(out), {s.B, s.T, s.HV, s.V}, q.dtype, 2)
      .done();

  // pick
  const auto kernel = pick_ring(op, s, pool, rings, state_v_first);

  // launch
  Tensor o = result(out, {s.B, s.T, s.HV, s.V}, q.dtype, q.device);
  FusedRecurrentRingArgs args = ring_args(s, pool, ssm_indices, min_slot, rings);
  args.q = rows_arg(q, s.packed), args.k = rows_arg(k, s.packed), args.v = rows_arg(v, s.packed);
  gates.fill(args, s);
  args.cu_seqlens = index_arg(cu_seqlens), args.lengths = index_arg(lengths);
  args.o = View(o).data, args.o_stride = View(o).row_stride(2), args.dtype = static_cast<int32_t>(q.dtype);
  args.scale = static_cast<float>(scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
  args.l2norm = use_qk_l2norm_in_kernel;
  launch_ring(kernel, s, args);
  return o;
}

}  // namespace gdn
