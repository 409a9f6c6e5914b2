#include <cmath>

#include "gen/kernels.h"
#include "parallel.h"

namespace gdn::cpu {

void l2norm(const kernels::l2norm::Keys& keys, const kernels::l2norm::Args& a) {
  with_float(keys.T, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel(a.R, a.D, [&](int64_t r) {
      const int64_t i_2 = r % a.n2, i_1 = r / a.n2 % a.n1, i_0 = r / a.n2 / a.n1;
      const T* x = static_cast<const T*>(a.x) + i_0 * a.stride_0 + i_1 * a.stride_1 + i_2 * a.stride_2;
      T* y = static_cast<T*>(a.y) + r * a.D;
      float sum = 0;
      for (int64_t d = 0; d < a.D; ++d) sum += static_cast<float>(x[d]) * static_cast<float>(x[d]);
      const float scale = 1 / std::sqrt(sum + a.eps);
      for (int64_t d = 0; d < a.D; ++d) y[d] = static_cast<T>(static_cast<float>(x[d]) * scale);
    });
  });
}

}  // namespace gdn::cpu
