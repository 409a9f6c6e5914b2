#include <vector>

#include "gen/kernels.h"
#include "recurrent.h"

namespace gdn::cpu {

namespace {

// One head's ring: entry j and its place.
struct Ring {
  float *k, *u, *g;
  int64_t step_k, step_u, step_g, K, V;

  Ring(const FusedRecurrentRingArgs& a, int64_t slot, int64_t h, int64_t hv)
      : k(a.ring_k.data + slot * a.ring_k.stride + h * a.K),
        u(a.ring_u.data + slot * a.ring_u.stride + hv * a.V),
        g(a.ring_g.data + slot * a.ring_g.stride + hv),
        step_k(int64_t{a.H} * a.K),
        step_u(int64_t{a.HV} * a.V),
        step_g(a.HV),
        K(a.K),
        V(a.V) {}

  // h [K, V] <- e^g_j h + k_j u_j^T
  void fold(std::vector<float>& h, int64_t j) const {
    const float decay = std::exp(g[j * step_g]);
    for (int64_t i = 0; i < K; ++i)
      for (int64_t v = 0; v < V; ++v) h[i * V + v] = decay * h[i * V + v] + k[j * step_k + i] * u[j * step_u + v];
  }
};

// A group of value heads, which share a key head's entries, of sequence n, or of the tokens of no sequence (n == N).
template <class T, class S>
void run(const FusedRecurrentRingArgs& a, bool v_first, int64_t n, int64_t h) {
  const int64_t K = a.K, V = a.V, group = a.group;
  const Offsets cu{a.cu_seqlens.low, a.cu_seqlens.stride, a.cu_seqlens.words, a.T};
  const bool packed = cu.words != 0, commits = a.entries.words != 0;
  auto o = [&](int64_t row, int64_t hv) { return static_cast<T*>(a.o) + row * a.o_stride + hv * V; };
  auto zero = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) std::fill_n(o(row, h * group), group * V, T(0.0f));
  };
  if (n == a.N) {
    zero(0, cu[0]);
    return zero(cu[a.N], a.T);
  }
  const int64_t row = packed ? cu[n] : n, first = packed ? row : n * a.T;
  const int64_t tokens = commits ? 0 : packed ? std::max<int64_t>(cu[n + 1] - row, 0) : a.T;
  const int64_t slot = load_index(a.read, n);
  if (slot < a.min_slot || slot >= a.slots) return zero(first, first + tokens);
  const int64_t m = commits ? load_index(a.entries, n) : load_index(a.lengths, slot);
  if (m < 0 || m > a.R || tokens > a.R) return zero(first, first + tokens);
  const bool due = commits ? m > 0 : m + tokens > a.R;
  if (tokens == 0 && !due) return;

  std::vector<float> k(std::max<int64_t>(tokens, 1) * K);
  const int64_t to = due ? 0 : m;  // where the tokens' entries go
  for (int64_t hv = h * group; hv < (h + 1) * group; ++hv) {
    const Ring ring(a, slot, h, hv);
    const int64_t step_k = v_first ? 1 : V, step_v = v_first ? K : 1;
    S* pool = static_cast<S*>(a.pool) + slot * a.pool_stride + hv * K * V;
    std::vector<float> state(K * V);
    for (int64_t i = 0; i < K; ++i)
      for (int64_t j = 0; j < V; ++j) state[i * V + j] = static_cast<float>(pool[i * step_k + j * step_v]);
    for (int64_t j = 0; j < m; ++j) ring.fold(state, j);
    if (due)
      for (int64_t i = 0; i < K; ++i)
        for (int64_t j = 0; j < V; ++j) pool[i * step_k + j * step_v] = round_to<S>(state[i * V + j]);
    float q[256];
    for (int64_t t = 0; t < tokens; ++t) {
      load_row(q, static_cast<const T*>(a.q.data) + offset(a.q, row, t, h), K, a.l2norm, a.scale);
      load_row(&k[t * K], static_cast<const T*>(a.k.data) + offset(a.k, row, t, h), K, a.l2norm, 1);
      const T* v = static_cast<const T*>(a.v.data) + offset(a.v, row, t, hv);
      const auto [g, beta] = gates<T>(a, row, t, hv);
      step(state.data(), q, &k[t * K], v, g, beta, ring.u + (to + t) * ring.step_u, o(first + t, hv), K, V);
      ring.g[(to + t) * ring.step_g] = g;
    }
  }
  // Keys last: the heads of a group share those that they replace.
  const Ring ring(a, slot, h, h * group);
  for (int64_t t = 0; t < tokens; ++t) std::copy_n(&k[t * K], K, ring.k + (to + t) * ring.step_k);
}

}  // namespace

void fused_recurrent_ring(const kernels::fused_recurrent_ring::Keys& keys,
                          const kernels::fused_recurrent_ring::Args& a) {
  const int64_t N = a.N + (a.cu_seqlens.words != 0);
  with_float(static_cast<DType>(a.dtype), [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    with_float(static_cast<DType>(a.state_dtype), [&](auto* s) {
      using S = std::remove_pointer_t<decltype(s)>;
      parallel(N * a.H, int64_t{a.K} * a.V, [&](int64_t i) { run<T, S>(a, keys.VFIRST, i / a.H, i % a.H); });
    });
  });
}

}  // namespace gdn::cpu
