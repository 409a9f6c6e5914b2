#include <torch/headeronly/util/Float8_e4m3fn.h>

#include <cstring>
#include <vector>

#include "cuda/rounding.h"
#include "gen/kernels.h"
#include "recurrent.h"

namespace gdn::cpu {

namespace {

using fp8 = torch::headeronly::Float8_e4m3fn;

// x as S; fp8 saturates at its largest number.
template <class S>
S rounded(float x) {
  if constexpr (std::is_same_v<S, fp8>) x = x > 448 ? 448 : x < -448 ? -448 : x;
  return round_to<S>(x);
}

// value(i, j) of [K, V] to element `at` of states in memory.
template <class S, class F>
void store_state(void* p, int64_t at, bool v_first, int64_t K, int64_t V, F value) {
  for (int64_t i = 0; i < K; ++i)
    for (int64_t j = 0; j < V; ++j)
      static_cast<S*>(p)[at + (v_first ? j * K + i : i * V + j)] = rounded<S>(value(i, j));
}

// x at random to one of the bf16 numbers round it.
float at_random(float x, uint64_t key, int64_t element) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  bits = round_at_random(bits, rounding_bits(key, static_cast<uint32_t>(element)));
  std::memcpy(&x, &bits, sizeof(bits));
  return x;
}

// Value head hv of sequence n, or of the tokens of no sequence (n == N).
template <class T, class S>
void run(const FusedRecurrentArgs& a, bool v_first, int64_t n, int64_t hv) {
  const SpecArgs& spec = a.spec;
  const int64_t K = a.K, V = a.V, h = divide(static_cast<uint32_t>(hv), a.ratio);
  const Offsets cu{a.cu_seqlens.low, a.cu_seqlens.stride, a.cu_seqlens.words, a.T};
  const bool packed = cu.words != 0, pool = a.read.words != 0;
  auto o = [&](int64_t row) { return static_cast<T*>(a.o) + row * a.o_stride + hv * V; };
  auto zero = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) std::fill_n(o(row), V, T(0.0f));
  };
  if (n == a.N) {
    zero(0, cu[0]);
    return zero(cu[a.N], a.T);
  }
  const int64_t row = packed ? cu[n] : n, first = packed ? row : n * a.T;
  const int64_t tokens = packed ? std::max<int64_t>(cu[n + 1] - row, 0) : a.T;
  const int64_t column = spec.accepted.words ? load_index(spec.accepted, n) - 1 : 0;
  const bool refused = spec.accepted.words && (column < 0 || column >= spec.read_columns);
  const int64_t also = spec.also.words ? load_index(spec.also, n) : a.min_slot;
  if (refused || tokens > spec.most_tokens || also < a.min_slot || (spec.also.words && also >= spec.n_also))
    return zero(first, first + tokens);
  const int64_t slot = pool ? load_index(a.read, n, column * spec.read_step) : n;
  auto live = [&](int64_t slot) { return !pool || (slot >= a.min_slot && slot < a.slots); };
  if (!live(slot)) return zero(first, first + tokens);
  if (pool && tokens == 0) return;

  const int64_t step_k = v_first ? 1 : V, step_v = v_first ? K : 1, head = hv * K * V;
  const float scale = spec.scales != nullptr ? spec.scales[hv * spec.scales_stride] : 1.0f;
  std::vector<float> state(K * V, 0.0f);
  float q[256], k[256], u[256];
  if (a.h0 != nullptr && (a.has_state == nullptr || a.has_state[n * a.has_state_stride])) {
    const S* h0 = static_cast<const S*>(a.h0) + slot * a.h0_stride + head;
    for (int64_t i = 0; i < K; ++i)
      for (int64_t j = 0; j < V; ++j) state[i * V + j] = static_cast<float>(h0[i * step_k + j * step_v]) * scale;
  }
  const std::vector<float> start = state;
  std::vector<std::vector<float>> after;  // of a draft tree: the state after each token
  const int64_t steps_slot = spec.steps_slots.words ? load_index(spec.steps_slots, n) : n;
  const bool steps = spec.steps != nullptr && steps_slot >= 0 && steps_slot < spec.n_steps_slots;
  auto store = [&](int64_t to) {
    if (a.ht == nullptr || !live(to)) return;
    const int64_t at = to * a.ht_stride + head;
    const uint64_t key = spec.seed != nullptr ? rounding_key(*spec.seed, to) : 0;
    if (a.ht_fp32)
      store_state<float>(a.ht, at, v_first, K, V, [&](int64_t i, int64_t j) { return state[i * V + j]; });
    else if (spec.seed != nullptr)
      store_state<S>(a.ht, at, v_first, K, V,
                     [&](int64_t i, int64_t j) { return at_random(state[i * V + j], key, head + i * V + j); });
    else
      store_state<S>(a.ht, at, v_first, K, V, [&](int64_t i, int64_t j) { return state[i * V + j] / scale; });
  };
  for (int64_t t = 0; t < tokens; ++t) {
    if (spec.parents.words) {
      const int64_t parent = load_index(spec.parents, n, t * spec.parents_step);
      state = parent >= 0 && parent < t ? after[parent] : start;
    }
    load_row(q, static_cast<const T*>(a.q.data) + offset(a.q, row, t, h), K, a.l2norm, a.scale);
    load_row(k, static_cast<const T*>(a.k.data) + offset(a.k, row, t, h), K, a.l2norm, 1);
    const auto [g, beta] = gates<T>(a, row, t, hv);
    const T* v = static_cast<const T*>(a.v.data) + offset(a.v, row, t, hv);
    step(state.data(), q, k, v, g, beta, u, o(first + t), K, V);
    if (spec.parents.words) after.push_back(state);
    auto aside = [&](void* p, int64_t at, int32_t dtype) {
      with_float(static_cast<DType>(dtype), [&](auto* s) {
        const auto value = [&](int64_t i, int64_t j) { return state[i * V + j]; };
        store_state<std::remove_pointer_t<decltype(s)>>(p, at + head, v_first, K, V, value);
      });
    };
    if (steps) aside(spec.steps, steps_slot * spec.steps_stride + t * spec.steps_stride_t, spec.steps_dtype);
    if (const CheckpointArgs& c = spec.checkpoints; c.data != nullptr) {
      const int64_t before = c.prefix.words ? std::max<int64_t>(load_index(c.prefix, n), 0) : 0, after = before + t + 1;
      const int64_t i = after / c.every - before / c.every - 1;
      const int64_t to = after % c.every == 0 && i < c.columns ? load_index(c.slots, n, i * c.slots_step) : -1;
      if (to >= a.min_slot && to < c.n_slots) aside(c.data, to * c.stride, c.dtype);
    }
    if (spec.every) store(load_index(a.write, n, t * spec.write_step));
  }
  if (!spec.every) store(a.write.words ? load_index(a.write, n) : slot);
}

}  // namespace

void fused_recurrent(const kernels::fused_recurrent::Keys& keys, const kernels::fused_recurrent::Args& a) {
  const int64_t N = a.N + (a.cu_seqlens.words != 0);
  with_float(static_cast<DType>(a.dtype), [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    const auto with_states = [&](auto* s) {
      using S = std::remove_pointer_t<decltype(s)>;
      parallel(N * a.HV, int64_t{a.K} * a.V, [&](int64_t i) { run<T, S>(a, keys.VFIRST, i / a.HV, i % a.HV); });
    };
    if (static_cast<DType>(a.state_dtype) == DType::fp8)
      with_states(static_cast<fp8*>(nullptr));
    else
      with_float(static_cast<DType>(a.state_dtype), with_states);
  });
}

}  // namespace gdn::cpu
