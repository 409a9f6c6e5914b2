// What the two convolution ops share: the checks of their common arguments, and the one launch.
#pragma once

#include <algorithm>

#include "gen/kernels.h"
#include "runtime/activation.h"
#include "runtime/args.h"
#include "runtime/index.h"

namespace gdn {

// A call, its tensors under the names the op gives them.
struct Conv {
  const char* op;
  View x;
  int dim_b, dim_t, dim_d;  // dimensions of x: batch rows, tokens, channels; -1 for one it does not have
  View weight, bias;
  const char* state_name;
  View state;
  const char* indices_name;
  View indices, cu_seqlens, has_state;
  int64_t activation, min_slot;
  bool history;  // sequences continue their state, where has_state does not say

  int64_t B() const { return dim_b < 0 ? 1 : x.size(dim_b); }
  int64_t T() const { return dim_t < 0 ? 1 : x.size(dim_t); }
  int64_t D() const { return x.size(dim_d); }
  int64_t N() const { return cu_seqlens.defined() ? std::max<int64_t>(cu_seqlens.size(0), 1) - 1 : B(); }
  TokensArg strides(const View& t) const {
    auto stride = [&](int d) {
      return d >= 0 && t.size(d) > 1 ? t.stride(d) : 0;
    };  // a single one may report any stride
    return {stride(dim_b), stride(dim_t), t.stride(dim_d)};
  }

  void check(Checks& checks) const;
  Tensor launch() const;
};

// Whether VEC channels can be moved at once: next to each other, on a multiple of their size.
inline bool in_packs(const View& t, int64_t stride_d, std::initializer_list<int64_t> other_strides, int VEC) {
  bool fits = stride_d == 1 && reinterpret_cast<uintptr_t>(t.data) % (element_size(t.dtype) * VEC) == 0;
  for (int64_t stride : other_strides) fits = fits && stride % VEC == 0;
  return fits;
}

// Tokens a thread walks along: enough threads for a large GPU first (an H200 holds 16 warps on each of 132 SMs), then
// long walks, which read the W - 1 inputs before them less often.
inline int32_t log2_walk(int64_t tokens, int64_t packs) {
  for (int32_t log_BT : {6, 5})
    if ((tokens * packs) >> log_BT >= 131072) return log_BT;
  return 4;
}

inline void Conv::check(Checks& checks) const {
  const int64_t W = weight.size(-1);
  checks.dtype("x", x, {DType::bf16, DType::fp16, DType::fp32}).device("x", x).no_grad("x", x);
  checks.that(D() >= 1, "x", "at least one channel", x);
  checks.shape("weight", weight, {D(), -1})
      .that(weight.dim != 2 || (W >= 2 && W <= 4), "weight", "width 2, 3 or 4", W)
      .dtype("weight", weight, {x.dtype, DType::fp32})
      .device("weight", weight)
      .no_grad("weight", weight);
  if (bias.defined())
    checks.shape("bias", bias, {D()})
        .dtype("bias", bias, {x.dtype, DType::fp32})
        .device("bias", bias)
        .no_grad("bias", bias);
  checks.that(activation == kNone || activation == kSilu, "activation", "0 (none) or 1 (silu)", activation);

  if (cu_seqlens.defined())
    checks.index("query_start_loc", cu_seqlens, {-1})
        .that(cu_seqlens.dim != 1 || cu_seqlens.sizes[0] >= 1, "query_start_loc", "N + 1 entries", cu_seqlens);
  if (state.defined()) {
    bool shared = false;
    for (int64_t d = 0; d < state.dim; ++d) shared = shared || (state.sizes[d] > 1 && state.strides[d] == 0);
    checks.shape(state_name, state, {-1, D(), -1})
        .that(state.dim != 3 || state.sizes[2] >= W - 1, state_name, "at least W - 1 columns", state)
        .that(indices.defined() || state.size(0) >= N(), state_name, "a state for every sequence", state)
        .that(!shared, state_name, "an element for every index (it is updated in place)", "stride 0")
        .dtype(state_name, state, {x.dtype, DType::fp32})
        .device(state_name, state)
        .no_grad(state_name, state);
  }
  if (indices.defined())
    checks.that(state.defined(), indices_name, "None without conv_states", indices).index(indices_name, indices, {N()});
  if (has_state.defined())
    checks.that(state.defined(), "has_initial_state", "None without conv_states", has_state)
        .shape("has_initial_state", has_state, {N()})
        .dtype("has_initial_state", has_state, {DType::b8})
        .device("has_initial_state", has_state);
}

inline Tensor Conv::launch() const {
  // shapes
  const bool varlen = cu_seqlens.defined(), fp32 = x.dtype == DType::fp32;
  const int64_t W = weight.size(1), H = W - 1, T_ = T(), D_ = D(), N_ = N();
  const int64_t line = state.defined() && !indices.defined() ? state.sizes[2] : H;
  Tensor y_ = dim_d == dim_t - 1 && x.stride(dim_d) == 1 ? empty_transposed_like(x) : empty_like(x, x.dtype);
  const View y(y_);
  const TokensArg x_at = strides(x), y_at = strides(y);

  // pick
  int VEC = 1;
  for (int vec : {4, 2})
    if (VEC == 1 && !fp32 && (vec == 4 || W == 4) && D_ % vec == 0 &&
        in_packs(x, x_at.stride_d, {x_at.stride_b, x_at.stride_t}, vec) &&
        in_packs(y, y_at.stride_d, {y_at.stride_b, y_at.stride_t}, vec))
      VEC = vec;
  int32_t state_layout = kAnyState;
  if (state.defined() && VEC > 1 && state.dtype == x.dtype) {
    if (in_packs(state, state.strides[1], {state.strides[0], state.strides[2]}, VEC))
      state_layout = kChannelsLast;
    else if (VEC == 4 && line == H && state.strides[1] == H &&
             in_packs(state, state.strides[2], {state.strides[0]}, VEC))
      state_layout = kPackedLines;
  }
  const int32_t log_BT = log2_walk(B() * T_, D_ / VEC);
  const int64_t chunks = chunk_slots(N_, T_, int64_t{1} << log_BT, varlen);
  const auto kernel = pick<kernels::causal_conv1d>(op, x.device, {.T = x.dtype, .W = static_cast<int>(W), .VEC = VEC});

  // launch
  kernel.launch(ceil_div(chunks * (D_ / VEC), kernel.tiles.THREADS),
                {.x = x.data,
                 .y = y.data,
                 .weight = weight.data,
                 .bias = bias.data,
                 .state = state.data,
                 .x_at = x_at,
                 .y_at = y_at,
                 .weight_stride_d = weight.strides[0],
                 .weight_stride_w = weight.strides[1],
                 .bias_stride = bias.stride(0),
                 .state_stride_n = state.stride(0),
                 .state_stride_d = state.stride(1),
                 .state_stride_l = state.stride(2),
                 .cu_seqlens = index_arg(cu_seqlens),
                 .indices = index_arg(indices),
                 .has_state = static_cast<const uint8_t*>(has_state.data),
                 .has_state_stride = has_state.stride(0),
                 .N = N_,
                 .T = T_,
                 .D = D_,
                 .min_slot = min_slot > 0 ? min_slot : 0,
                 .slots = state.size(0),
                 .chunks = chunks,
                 .log_BT = log_BT,
                 .W = static_cast<int32_t>(W),
                 .line = static_cast<int32_t>(line),
                 .history = history,
                 .activation = static_cast<int32_t>(activation),
                 .weight_fp32 = weight.dtype == DType::fp32,
                 .bias_fp32 = bias.dtype == DType::fp32,
                 .state_fp32 = state.dtype == DType::fp32,
                 .weight_packed = weight.dtype == x.dtype && weight.contiguous() && in_packs(weight, 1, {}, VEC),
                 .state_layout = state_layout});
  return y_;
}

}  // namespace gdn
