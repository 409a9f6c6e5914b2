// What the whole-layer ops share: sizes, checks, and views of the projection rows in either order.
#pragma once

#include <array>

#include "conv.h"
#include "gated_rmsnorm.h"
#include "recurrent.h"
#include "runtime/workspace.h"

namespace gdn {

using Sizes = std::initializer_list<int64_t>;

// `offset` elements into t's memory, borrowed from it: t's leading dimensions but the last `drop`, then `sizes`.
inline Tensor view_of(const Tensor& t, Sizes sizes, Sizes strides, int64_t offset, int64_t drop) {
  const View v(t);
  std::array<int64_t, 8> n{}, s{};
  const int64_t lead = std::max<int64_t>(v.dim - drop, 0);
  std::copy_n(v.sizes, lead, n.begin()), std::copy_n(v.strides, lead, s.begin());
  std::copy(sizes.begin(), sizes.end(), n.begin() + lead), std::copy(strides.begin(), strides.end(), s.begin() + lead);
  AtenTensorHandle handle = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch__reinterpret_tensor(t.get(), lead + static_cast<int64_t>(sizes.size()),
                                                               n.data(), s.data(), offset, &handle));
  return Tensor(handle);
}

// Sizes of a layer and of the rows its input projections give: mixed [.., columns] and ba [.., 2 HV], with
//   flat         [q | k | v | z] and [b | a], or all in one row
//   interleaved  [q K | k K | v r V | z r V] and [b r | a r] for every key head, r = HV / H.
// D channels [q | k | v] go through the convolution.
struct Layer {
  View mixed, ba, conv_weight, conv_bias, conv_states, A_log, dt_bias, norm_weight, pool, out_scale;
  bool interleaved, one_row;
  int64_t HV, K, V, H, D, r;

  Layer(const Tensor& mixed_, const OptTensor& ba_, const Tensor& conv_weight_, const OptTensor& conv_bias_,
        const Tensor& conv_states_, const Tensor& A_log_, const Tensor& dt_bias_, const Tensor& norm_weight_,
        const Tensor& pool_, const OptTensor& out_scale_, bool v_first, bool interleaved_)
      : mixed(mixed_),
        ba(ba_),
        conv_weight(conv_weight_),
        conv_bias(conv_bias_),
        conv_states(conv_states_),
        A_log(A_log_),
        dt_bias(dt_bias_),
        norm_weight(norm_weight_),
        pool(pool_),
        out_scale(out_scale_),
        interleaved(interleaved_),
        one_row(!ba.defined()),
        HV(A_log.size(0)),
        K(pool.size(v_first ? 3 : 2)),
        V(pool.size(v_first ? 2 : 3)),
        H(K >= 1 ? (conv_weight.size(0) - HV * V) / (2 * K) : 0),
        D(2 * H * K + HV * V),
        r(H >= 1 ? HV / H : 0) {}

  void check(Checks& checks, int64_t activation, int64_t norm_activation) const {
    const int64_t W = conv_weight.size(1), wide = D + HV * V + (one_row ? 2 * HV : 0);
    checks.activation("mixed_qkvz", mixed, mixed.dim == 3 ? Sizes{-1, -1, -1} : Sizes{-1, -1},
                      {DType::bf16, DType::fp16, DType::fp32});
    checks.pool("ssm_pool", pool, {-1, HV, -1, -1}, {DType::fp32, DType::bf16, DType::fp16, DType::fp8})
        .that(K >= 1 && K <= 256, "ssm_pool", "a head size K of 1 to 256", K)
        .that(V >= 1 && V <= 256, "ssm_pool", "a head size V of 1 to 256", V)
        .shape("conv_weight", conv_weight, {-1, -1})
        .that(H >= 1 && HV >= 1 && HV % H == 0 && conv_weight.size(0) == D, "conv_weight",
              "2 * H * K + HV * V channels, with HV a multiple of H", conv_weight)
        .that(W >= 2 && W <= 4, "conv_weight", "width 2, 3 or 4", W)
        .dtype("conv_weight", conv_weight, {mixed.dtype, DType::fp32})
        .device("conv_weight", conv_weight)
        .no_grad("conv_weight", conv_weight);
    if (conv_bias.defined())
      checks.shape("conv_bias", conv_bias, {D})
          .dtype("conv_bias", conv_bias, {mixed.dtype, DType::fp32})
          .device("conv_bias", conv_bias)
          .no_grad("conv_bias", conv_bias);
    check_lines(checks, "conv_states", conv_states, {-1, D, -1}, mixed.dtype);
    checks.that(conv_states.size(2) >= W - 1, "conv_states", "at least W - 1 columns", conv_states)
        .gate("A_log", A_log, {HV}, mixed.dtype)
        .gate("dt_bias", dt_bias, {HV}, mixed.dtype)
        .that(A_log.defined(), "A_log", "a tensor", "None")
        .that(dt_bias.defined(), "dt_bias", "a tensor", "None")
        .activation("norm_weight", norm_weight, {V}, {mixed.dtype, DType::fp32})
        .that(mixed.size(-1) == wide, "mixed_qkvz",
              one_row ? "rows [q | k | v | z | b | a], or [q | k | v | z] with ba" : "rows [q | k | v | z]", mixed)
        .that(!(interleaved && one_row), "ba", "a tensor with interleaved", "None");
    checks.that(activation == kNone || activation == kSilu, "activation", "0 (none) or 1 (silu)", activation)
        .that(norm_activation >= kNone && norm_activation <= kSigmoid, "norm_activation", "0, 1 (silu) or 2 (sigmoid)",
              norm_activation);
    if (!one_row)
      checks.activation("ba", ba,
                        mixed.dim == 3 ? Sizes{mixed.size(0), mixed.size(1), 2 * HV} : Sizes{mixed.size(0), 2 * HV},
                        {mixed.dtype});
    if (out_scale.defined())
      checks.that(out_scale.numel() == 1 && out_scale.dim <= 1, "out_scale", "one number", out_scale)
          .dtype("out_scale", out_scale, {DType::fp32})
          .device("out_scale", out_scale);
  }

  DType y_dtype() const { return out_scale.defined() ? DType::fp8 : mixed.dtype; }

  // What the convolution reads: its channels, or, interleaved, whole rows.
  Tensor conv_input(const Tensor& mixed_) const {
    return view_of(mixed_, {interleaved ? mixed.size(-1) : D}, {1}, 0, 1);
  }
  // The convolution on its pool, without its tokens: of rows [B, channels], [B, T, channels] or, packed, [T, channels].
  Conv conv(const char* op, const View& slots, const View& cu_seqlens, bool packed, int64_t activation,
            int64_t min_slot, bool history) const {
    return {.op = op,
            .x = {},
            .dim_b = packed ? -1 : 0,
            .dim_t = packed           ? 0
                     : mixed.dim == 3 ? 1
                                      : -1,
            .dim_d = mixed.dim == 3 ? 2 : 1,
            .weight = conv_weight,
            .bias = conv_bias,
            .state_name = "conv_states",
            .state = conv_states,
            .indices_name = "cache_indices",
            .indices = slots,
            .cu_seqlens = cu_seqlens,
            .has_state = {},
            .activation = activation,
            .min_slot = min_slot,
            .history = history,
            .groups = groups(interleaved ? H : 0, K, conv_weight)};
  }

  // z [.., HV, V], or [.., H, r, V] interleaved.
  Tensor z(const Tensor& mixed_) const {
    if (!interleaved) return view_of(mixed_, {HV, V}, {V, 1}, D, 1);
    return view_of(mixed_, {H, r, V}, {2 * K + 2 * r * V, V, 1}, 2 * K + r * V, 1);
  }

  // b (which = 0) or a (1): [.., HV], or [.., H, r] interleaved.
  Tensor gate(const Tensor& mixed_, const OptTensor& ba_, int64_t which) const {
    if (interleaved) return view_of(*ba_, {H, r}, {2 * r, 1}, which * r, 1);
    return view_of(one_row ? mixed_ : *ba_, {HV}, {1}, (one_row ? D + HV * V : 0) + which * HV, 1);
  }
};

}  // namespace gdn
