#include <cmath>

#include "conv.h"
#include "gen/kernels.h"

namespace gdn::cpu {

namespace {

template <class T>
void copy(const CopyArg& t, int64_t row, bool live, int64_t HV, int64_t V) {
  for (int64_t head = 0; head < HV; ++head)
    for (int64_t i = 0; i < V; ++i) {
      const int64_t from = row * t.stride_b + head * t.stride_h + i * t.stride_v, to = (row * HV + head) * V + i;
      if (t.fp32)
        static_cast<float*>(t.to)[to] = live ? static_cast<const float*>(t.from)[from] : 0.0f;
      else
        static_cast<T*>(t.to)[to] = live ? static_cast<const T*>(t.from)[from] : static_cast<T>(0.0f);
    }
}

}  // namespace

void conv_pack_gdn_decode_inputs(const kernels::conv_pack_gdn_decode_inputs::Keys& keys,
                                 const kernels::conv_pack_gdn_decode_inputs::Args& a) {
  with_float(keys.T, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const int64_t D = 2 * a.keys + a.values;
    parallel(a.B, D * a.W, [&](int64_t row) {
      const int64_t slot = load_index(a.indices, row);
      const bool live = slot >= a.min_slot && slot < a.state.slots;
      for (int64_t c = 0; c < D; ++c) {
        float w[4], sum = 0;
        if (live) {
          load_filter<T>(a.filter, a.W, c, w, sum);
          const float now = static_cast<float>(static_cast<const T*>(a.x)[row * a.x_stride_b + c * a.x_stride_d]);
          for (int64_t i = 0; i + 1 < a.W; ++i) {
            sum += w[i] * load_line<T>(a.state, slot, c, i);
            store_line<T>(a.state, slot, c, i, i + 2 < a.W ? load_line<T>(a.state, slot, c, i + 1) : now);
          }
          sum += w[a.W - 1] * now;
          if (a.filter.activation == kSilu) sum = silu(sum);
        }
        T* const to = c < a.keys       ? static_cast<T*>(a.q) + row * a.keys + c
                      : c < 2 * a.keys ? static_cast<T*>(a.k) + row * a.keys + c - a.keys
                                       : static_cast<T*>(a.v) + row * a.values + c - 2 * a.keys;
        *to = round_to<T>(sum);
      }
      copy<T>(a.z, row, live, a.HV, a.V);
      copy<T>(a.a, row, live, a.HV, 1);
      copy<T>(a.b, row, live, a.HV, 1);
    });
  });
}

}  // namespace gdn::cpu
