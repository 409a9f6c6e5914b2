// What the two convolution ops share: the checks of their common arguments, and the one launch.
#pragma once

#include "gen/kernels.h"

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
  int64_t N() const { return cu_seqlens.defined() ? cu_seqlens.size(0) - 1 : B(); }
  TokensArg strides(const View& t) const {
    return {dim_b < 0 ? 0 : t.stride(dim_b), dim_t < 0 ? 0 : t.stride(dim_t), t.stride(dim_d)};
  }

  void check(Checks& checks) const;
  Tensor launch() const;
};

}  // namespace gdn
