// What host functions need for a causal convolution: the checks of its common arguments, and its one launch.
#pragma once

#include <algorithm>
#include <cstdlib>

#include "gen/kernels.h"
#include "runtime/activation.h"
#include "runtime/args.h"
#include "runtime/index.h"

namespace gdn {

// Qwen3-Next's interleaved projection: x has H groups of `width` columns, each [q K | k K | v V | ...] (V: of all value
// heads of the group), for channels [q | k | v]. H 0: channel c is column c.
struct Groups {
  int64_t H = 0, K = 0, V = 0, width = 0;
};

// The groups [q K | k K | v V | z V] that H and K say, for the channels of `weight`.
inline Groups groups(int64_t H, int64_t K, const View& weight) {
  if (H <= 0) return {};
  const int64_t V = weight.size(0) / H - 2 * K;
  return {H, K, V, 2 * K + 2 * V};
}

// A call, its tensors under the names the op gives them.
struct Conv {
  const char* op;
  const char* x_name = "x";
  View x;
  int dim_b, dim_t, dim_d;  // dimensions of x: batch rows, tokens, channels; -1 for one it does not have
  View weight, bias;
  const char* state_name;
  View state;
  const char* indices_name;
  View indices, cu_seqlens, has_state;
  int64_t activation, min_slot;
  bool history;        // sequences continue their state, which there must be, where has_state does not say
  View out = {};       // where results go: new memory if there is none
  Groups groups = {};  // where x's channels are

  // On the way along prompts (see CausalConv1dArgs).
  View seq_idx = {}, checkpoints = {}, checkpoint_indices = {}, prefix_lens = {};
  int64_t checkpoint_every = 0;
  bool reads_only = false;  // states stay as they are
  // Of another pool with slots of the same rows: see SecondPool.
  View also = {};  // [N] or [N, S + 1]
  int64_t n_also = INT64_MAX, most_tokens = INT32_MAX;
  // Rows of few tokens.
  View accepted = {}, positions = {}, parents = {}, windows = {}, window_indices = {};

  int64_t B() const { return dim_b < 0 ? 1 : x.size(dim_b); }
  int64_t T() const { return dim_t < 0 ? 1 : x.size(dim_t); }
  int64_t D() const { return groups.H > 0 ? groups.H * (2 * groups.K + groups.V) : x.size(dim_d); }
  int64_t W() const { return weight.size(-1); }
  int64_t N() const { return cu_seqlens.defined() ? std::max<int64_t>(cu_seqlens.size(0), 1) - 1 : B(); }
  TokensArg strides(const View& t) const {
    auto stride = [&](int d) {
      return d >= 0 && t.size(d) > 1 ? t.stride(d) : 0;
    };  // a single one may report any stride
    return {stride(dim_b), stride(dim_t), t.stride(dim_d)};
  }

  void check(Checks& checks) const;
  void check_groups(Checks& checks, int64_t H, int64_t K) const;
  // `out` has the shape and dtype of y, and is x itself if it may be, or does not overlap it.
  void check_out(Checks& checks, bool may_be_x) const;
  // y, in the memory of `given` (the tensor of `out`) if there is one.
  Tensor launch(const OptTensor& given) const;

  bool in_place() const {
    if (!out.defined() || out.data != x.data || out.dim != x.dim) return false;
    for (int64_t d = 0; d < x.dim; ++d)
      if (out.sizes[d] != x.sizes[d] || (x.sizes[d] > 1 && out.strides[d] != x.strides[d])) return false;
    return true;
  }
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

inline GroupsArg groups_arg(const Groups& g, int64_t D) {
  const bool grouped = g.H > 0;
  const int64_t K = grouped ? g.K : 0, V = grouped ? g.V : D;
  return {.keys = static_cast<int32_t>(g.H * K),
          .K = static_cast<int32_t>(K),
          .width = static_cast<int32_t>(grouped ? g.width : 0),
          .V = static_cast<int32_t>(V),
          .by_K = divisor(std::max<int64_t>(K, 1)),
          .by_V = divisor(std::max<int64_t>(V, 1))};
}

inline FilterArg filter_arg(const View& weight, const View& bias, DType dtype, int64_t activation, int VEC) {
  return {.weight = weight.data,
          .bias = bias.data,
          .stride_d = weight.stride(0),
          .stride_w = weight.stride(1),
          .bias_stride = bias.stride(0),
          .weight_fp32 = weight.dtype == DType::fp32,
          .bias_fp32 = bias.dtype == DType::fp32,
          .packed = weight.dtype == dtype && weight.contiguous() && in_packs(weight, 1, {}, VEC),
          .activation = static_cast<int32_t>(activation)};
}

// t [slots, D, L] or [slots, S, D, L]; `columns` of W - 1 are read and written at once.
inline LinesArg lines_arg(const View& t, DType dtype, int VEC, int64_t columns) {
  if (!t.defined()) return {};
  const int64_t stride_d = t.stride(-2), stride_l = t.stride(-1), step = t.dim == 4 ? t.stride(1) : 0;
  int32_t layout = kAnyLines;
  if (VEC > 1 && t.dtype == dtype) {
    if (in_packs(t, stride_d, {t.stride(0), step, stride_l}, VEC))
      layout = kChannelsLast;
    else if (VEC == 4 && columns == t.size(-1) && stride_d == columns &&
             in_packs(t, stride_l, {t.stride(0), step}, VEC))
      layout = kPackedLines;
  }
  return {.data = t.data,
          .stride_n = t.stride(0),
          .stride_d = stride_d,
          .stride_l = stride_l,
          .slots = t.size(0),
          .fp32 = t.dtype == DType::fp32,
          .layout = layout};
}

// Lines [slots, ..., D, L] that are updated in place, with any strides, beside activations of `dtype`.
inline void check_lines(Checks& checks, const char* name, const View& t, std::initializer_list<int64_t> sizes,
                        DType dtype) {
  bool shared = false;
  for (int64_t d = 0; d < t.dim; ++d) shared = shared || (t.sizes[d] > 1 && t.strides[d] == 0);
  checks.shape(name, t, sizes)
      .that(!shared, name, "an element for every index (it is updated in place)", "stride 0")
      .dtype(name, t, {dtype, DType::fp32})
      .device(name, t)
      .no_grad(name, t);
}

inline void Conv::check(Checks& checks) const {
  checks.dtype(x_name, x, {DType::bf16, DType::fp16, DType::fp32}).device(x_name, x).no_grad(x_name, x);
  checks.that(D() >= 1 && D() <= INT32_MAX, x_name, "at least one channel", x);
  checks.shape("weight", weight, {D(), -1})
      .that(weight.dim != 2 || (W() >= 2 && W() <= 4), "weight", "width 2, 3 or 4", W())
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
  if (state.defined() || history) {
    check_lines(checks, state_name, state, {-1, D(), -1}, x.dtype);
    checks.that(state.dim != 3 || state.sizes[2] >= W() - 1, state_name, "at least W - 1 columns", state)
        .that(indices.defined() || state.dim != 3 || state.sizes[0] >= N(), state_name, "a state for every sequence",
              state);
  }
  if (indices.defined())
    checks.that(state.defined(), indices_name, "None without conv_states", indices).index(indices_name, indices, {N()});
  if (has_state.defined())
    checks.that(state.defined(), "has_initial_state", "None without conv_states", has_state)
        .shape("has_initial_state", has_state, {N()})
        .dtype("has_initial_state", has_state, {DType::b8})
        .device("has_initial_state", has_state);
}

inline void Conv::check_groups(Checks& checks, int64_t H, int64_t K) const {
  checks.that(H >= 0 && (H > 0) == (K > 0), "H", "0, or key heads with K > 0", H);
  if (groups.H <= 0 || K <= 0) return;
  checks.that(groups.V > 0 && weight.size(0) == D(), "weight", "channels for H groups of 2 K and value heads", weight)
      .that(x.size(dim_d) == H * groups.width, "x", "columns [q K | k K | v | z] for each of H groups", x);
}

inline void Conv::check_out(Checks& checks, bool may_be_x) const {
  if (!out.defined()) return;
  int64_t low[2] = {}, high[2] = {};  // bytes from the start of x to those of x and out, and to their ends
  bool same = out.dim == x.dim, shared = false;
  for (int64_t d = 0; d < out.dim && same; ++d) {
    same = out.sizes[d] == (d == dim_d ? D() : x.sizes[d]);
    shared = shared || (out.sizes[d] > 1 && out.strides[d] == 0);
  }
  checks.that(same, "out", "the shape of the result", out)
      .that(!shared, "out", "an element for every index", "stride 0")
      .dtype("out", out, {x.dtype})
      .device("out", out)
      .no_grad("out", out);
  if (!same || x.numel() == 0 || out.numel() == 0 || (may_be_x && in_place())) return;

  const View* const both[2] = {&x, &out};
  const int64_t size = element_size(x.dtype);
  const int64_t between = static_cast<const char*>(out.data) - static_cast<const char*>(x.data);
  for (int i = 0; i < 2; ++i) {
    low[i] = high[i] = i * between;
    for (int64_t d = 0; d < both[i]->dim; ++d) high[i] += (both[i]->sizes[d] - 1) * both[i]->strides[d] * size;
    high[i] += size;
  }
  bool apart = high[0] <= low[1] || high[1] <= low[0];
  const TokensArg x_at = strides(x), out_at = strides(out);
  const int64_t row = dim_t >= 0 && T() > 1 ? x_at.stride_t : x_at.stride_b;
  if (!apart && row > 0 && between % size == 0 && x_at.stride_d == 1 && out_at.stride_d == 1 &&
      x_at.stride_t == out_at.stride_t && x_at.stride_b == out_at.stride_b && x_at.stride_b % row == 0) {
    const int64_t column = (between / size % row + row) % row;  // other columns of the same rows
    apart = column >= x.size(dim_d) && column + D() <= row;
  }
  checks.that(apart, "out",
              may_be_x ? "x itself, or memory apart from x" : "memory apart from x (several threads read it)",
              "memory that overlaps x");
}

inline Tensor Conv::launch(const OptTensor& given) const {
  // shapes
  const bool varlen = cu_seqlens.defined();
  const int64_t H = W() - 1, T_ = T(), D_ = D(), N_ = N();
  const bool whole_line = !indices.defined() || accepted.defined() || positions.defined();
  const int64_t line = state.defined() && whole_line ? state.sizes[2] : H;
  View shape = x;
  int64_t sizes[3] = {x.size(0), x.size(1), x.size(2)};
  sizes[dim_d] = D_, shape.sizes = sizes;
  Tensor y_ = given.has_value()                            ? *given
              : dim_d == dim_t - 1 && x.stride(dim_d) == 1 ? empty_transposed_like(shape)
                                                           : empty_like(shape, x.dtype);
  const View y(y_);
  const TokensArg x_at = strides(x), y_at = strides(y);

  // pick
  const bool marked = seq_idx.defined() || checkpoints.defined() || also.defined() || reads_only;
  const bool rows = accepted.defined() || positions.defined() || parents.defined() || windows.defined() ||
                    (also.defined() && history) || most_tokens < INT32_MAX || (in_place() && (varlen || T_ > 1));
  const int ROLE = rows ? kRows : marked ? kMarked : kWalk;
  auto fits = [&](int vec) {
    return D_ % vec == 0 && groups.K % vec == 0 && groups.V % vec == 0 && groups.width % vec == 0 &&
           in_packs(x, x_at.stride_d, {x_at.stride_b, x_at.stride_t}, vec) &&
           in_packs(y, y_at.stride_d, {y_at.stride_b, y_at.stride_t}, vec);
  };
  int VEC = 1;
  if (x.dtype != DType::fp32 && (W() == 4 || ROLE == kWalk) && fits(4))
    VEC = 4;
  else if (x.dtype != DType::fp32 && W() == 4 && ROLE == kWalk && fits(2))
    VEC = 2;
  const int32_t log_BT = log2_walk(B() * T_, D_ / VEC);
  const int64_t chunks = ROLE == kRows ? N_ + 2 * varlen : chunk_slots(N_, T_, int64_t{1} << log_BT, varlen);
  const auto kernel =
      pick<kernels::causal_conv1d>(op, x.device, {.T = x.dtype, .W = static_cast<int>(W()), .VEC = VEC, .ROLE = ROLE});

  // launch
  TableArg other = table_arg(also);
  other.columns = std::max<int64_t>(other.columns, 1);
  LinesArg lines = lines_arg(state, x.dtype, VEC, H);
  if (!also.defined()) lines.slots = std::min(lines.slots, n_also);
  if (accepted.defined() && !positions.defined() && VEC == 4 && D_ % 128 == 0 && line <= kMostColumns &&
      state.dtype == x.dtype && state.stride(2) == 1 && state.stride(1) == line &&
      in_packs(state, 1, {state.stride(0)}, 8))
    lines.layout = kWholeLines;
  kernel.launch(T_ == 0 ? 0 : ceil_div(chunks * (D_ / VEC), kernel.tiles.THREADS),
                {.x = x.data,
                 .y = y.data,
                 .x_at = x_at,
                 .y_at = y_at,
                 .groups = groups_arg(groups, D_),
                 .filter = filter_arg(weight, bias, x.dtype, activation, VEC),
                 .state = lines,
                 .cu_seqlens = index_arg(cu_seqlens),
                 .indices = index_arg(indices),
                 .has_state = static_cast<const uint8_t*>(has_state.data),
                 .has_state_stride = has_state.stride(0),
                 .N = N_,
                 .T = T_,
                 .D = D_,
                 .min_slot = min_slot > 0 ? min_slot : 0,
                 .chunks = chunks,
                 .log_BT = log_BT,
                 .W = static_cast<int32_t>(W()),
                 .line = static_cast<int32_t>(line),
                 .history = history,
                 .also = other,
                 .n_also = n_also,
                 .most_tokens = most_tokens,
                 .reads_only = reads_only,
                 .seq_idx = table_arg(seq_idx),
                 .checkpoints = lines_arg(checkpoints, x.dtype, VEC, H),
                 .checkpoint_indices = table_arg(checkpoint_indices),
                 .prefix_lens = index_arg(prefix_lens),
                 .checkpoint_every = checkpoint_every,
                 .accepted = index_arg(accepted),
                 .positions = index_arg(positions),
                 .parents = table_arg(parents),
                 .windows = lines_arg(windows, x.dtype, VEC, H),
                 .window_stride_t = windows.stride(1),
                 .window_tokens = windows.size(1),
                 .window_indices = index_arg(window_indices)});
  return y_;
}

}  // namespace gdn
