#include "gen/ops.h"
#include "recurrent.h"
#include "runtime/gate.h"
#include "runtime/index.h"

namespace gdn {

std::tuple<Tensor, Tensor> chunk_gated_delta_rule(const Tensor& q_, const Tensor& k_, const Tensor& v_,
                                                  const OptTensor& g_, const OptTensor& beta_,
                                                  std::optional<double> scale, const OptTensor& initial_state_,
                                                  bool output_final_state, const OptTensor& cu_seqlens_,
                                                  bool use_qk_l2norm_in_kernel, bool state_v_first) {
  constexpr const char* op = "chunk_gated_delta_rule";
  constexpr int64_t BT = 64;

  // shapes
  const View q(q_), k(k_), v(v_), g(g_), beta(beta_), h0(initial_state_), cu_seqlens(cu_seqlens_);
  const RecurrentSizes s(q, v, cu_seqlens);
  const int64_t S0 = state_v_first ? s.V : s.K, S1 = state_v_first ? s.K : s.V;
  const bool on_cpu = runs_cpu_twins(q.device);

  // checks
  Checks checks(op);
  check_tokens(checks, s, q, k, v, cu_seqlens)
      .that(on_cpu || q.dtype != DType::fp32, "q", "bf16 or fp16 (fp32: fused_recurrent_gated_delta_rule)", q)
      .gate("g", g, {s.B, s.T, s.HV}, q.dtype)
      .gate("beta", beta, {s.B, s.T, s.HV}, q.dtype);
  if (h0.defined()) checks.pool("initial_state", h0, {s.N, s.HV, S0, S1}, {DType::fp32, DType::bf16, DType::fp16});
  checks.done();

  // pick: chunks for head sizes of 64 and 128 and 16-byte rows, the token loop for all else and on the CPU; wide state
  // tiles where narrow ones would not run all at once (H200, 1 x 8192, HV = 48: rec 0.41 -> 0.26 ms)
  const bool chunks = (s.K == 64 || s.K == 128) && s.V % 64 == 0 && aligned(q, k, v);
  if (on_cpu || !chunks)
    return fused_recurrent_gated_delta_rule(q_, k_, v_, g_, beta_, scale, initial_state_, output_final_state,
                                            cu_seqlens_, use_qk_l2norm_in_kernel, state_v_first);
  const int BK = static_cast<int>(s.K);
  const int BV = s.N * s.HV * ceil_div(s.V, 32) > multiprocessors(q.device) ? 64 : 32;
  const auto prep = pick<kernels::chunk_prep>(op, q.device, {.T = q.dtype, .BK = BK});
  const auto rec = pick<kernels::chunk_rec>(op, q.device, {.T = q.dtype, .BK = BK, .BV = BV});

  // launch
  Tensor o_ = empty({s.B, s.T, s.HV, s.V}, q.dtype, q.device);
  Tensor ht =
      output_final_state ? empty({s.N, s.HV, S0, S1}, DType::fp32, q.device) : empty({0}, DType::fp32, q.device);
  const int64_t slots = chunk_slots(s.N, s.T, BT, s.packed), tile = BT * BT * element_size(q.dtype) * s.HV * slots;
  Tensor workspace = empty({2 * tile + slots * s.HV * 4 * BT * element_size(DType::fp32)}, DType::u8, q.device);
  const View o(o_);
  auto shared = [&, cu = Index(cu_seqlens), t = static_cast<char*>(View(workspace).data)](auto a) {
    a.q = q.data, a.k = k.data, a.o = o.data, a.t = t, a.p = t + tile, a.d = t + 2 * tile;
    a.stride_qb = q.stride(0), a.stride_qt = q.stride(1), a.stride_qh = q.stride(2);
    a.stride_kb = k.stride(0), a.stride_kt = k.stride(1), a.stride_kh = k.stride(2);
    a.cu_seqlens = cu.data, a.cu_stride = cu.stride, a.cu_words = cu.words, a.T_len = s.T;
    a.H = static_cast<int32_t>(s.H), a.HV = static_cast<int32_t>(s.HV);
    a.V = static_cast<int32_t>(s.V);
    return a;
  };

  // T', P' and the scales of every chunk; the value heads of a key head share its products once there are programs
  // enough to fill the GPU without
  const int64_t heads = slots * s.H >= 1024 ? s.HV / s.H : 1;
  const Gate gate(g), beta_gate(beta);
  auto a = shared(kernels::chunk_prep::Args{});
  a.g = gate.data, a.g_kind = gate.kind;
  a.stride_gb = gate.stride_b, a.stride_gt = gate.stride_t, a.stride_gh = gate.stride_h;
  a.beta = beta_gate.data, a.beta_kind = beta_gate.kind;
  a.stride_bb = beta_gate.stride_b, a.stride_bt = beta_gate.stride_t, a.stride_bh = beta_gate.stride_h;
  a.N = s.N, a.heads = static_cast<int32_t>(heads), a.l2norm = use_qk_l2norm_in_kernel;
  a.scale = static_cast<float>(scale.value_or(1 / std::sqrt(static_cast<double>(s.K))));
  prep.launch(slots * (s.HV / heads), a);

  // states and outputs, chunk after chunk
  auto b = shared(kernels::chunk_rec::Args{});
  b.v = v.data, b.stride_vb = v.stride(0), b.stride_vt = v.stride(1), b.stride_vh = v.stride(2);
  b.stride_ob = o.stride(0), b.stride_ot = o.stride(1), b.stride_oh = o.stride(2);
  b.h0 = h0.data, b.h0_kind = state_kind(h0);
  b.stride_sn = h0.stride(0), b.stride_sh = h0.stride(1), b.stride_sr = h0.stride(2);
  b.ht = View(ht).data, b.has_ht = output_final_state, b.v_first = state_v_first;
  rec.launch(s.N * s.HV * ceil_div(s.V, BV), b);
  return {o_, ht};
}

}  // namespace gdn
