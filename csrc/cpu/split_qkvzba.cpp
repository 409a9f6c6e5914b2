#include <cstring>

#include "gen/kernels.h"
#include "parallel.h"

namespace gdn::cpu {

void split_qkvzba(const kernels::split_qkvzba::Keys&, const kernels::split_qkvzba::Args& a) {
  parallel(a.T, a.ends[5], [&](int64_t t) {
    for (int s = 0; s < 6; ++s) {
      const SegmentArg& segment = a.segments[s];
      const int64_t size = s < 4 ? a.unit : a.gate, before = s ? a.ends[s - 1] : 0, parts = a.ends[s] - before;
      const char* from = s < 4 ? static_cast<const char*>(a.mixed) + t * a.mixed_stride
                               : static_cast<const char*>(a.ba) + t * a.ba_stride;
      char* to = static_cast<char*>(s < 3 ? a.qkv : s == 3 ? a.z : s == 4 ? a.b : a.a);
      to += (s < 3 ? t * a.ends[2] + before : t * parts) * size;
      for (int64_t i = 0; i < parts; ++i)
        std::memcpy(to + i * size, from + (segment.base + i / segment.inner * segment.group + i % segment.inner) * size,
                    size);
    }
  });
}

}  // namespace gdn::cpu
