#include <cmath>

#include "gen/kernels.h"
#include "norm_rows.h"
#include "parallel.h"

namespace gdn::cpu {

void l2norm(const kernels::l2norm::Keys& keys, const kernels::l2norm::Args& a) {
  with_float(keys.T, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel(a.rows.R, a.D, [&](int64_t r) {
      const T* x = static_cast<const T*>(a.x) + row_offsets(a.rows, r).x;
      T* y = static_cast<T*>(a.y) + r * a.D;
      float sum = 0;
      for (int64_t d = 0; d < a.D; ++d) sum += static_cast<float>(x[d]) * static_cast<float>(x[d]);
      const float scale = 1 / std::sqrt(sum + a.eps);
      for (int64_t d = 0; d < a.D; ++d) y[d] = static_cast<T>(static_cast<float>(x[d]) * scale);
    });
  });
}

}  // namespace gdn::cpu
