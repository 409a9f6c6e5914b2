#include "gen/kernels.h"
#include "gen/ops.h"
#include "runtime/args.h"
#include "runtime/index.h"

namespace gdn {

void advance_rings(const Tensor& ring_lengths_, const Tensor& ssm_indices_, int64_t ring_size,
                   std::optional<int64_t> tokens, const OptTensor& num_accepted_tokens_, const OptTensor& cu_seqlens_,
                   int64_t min_slot) {
  // shapes
  const View lengths(ring_lengths_), ssm_indices(ssm_indices_), accepted(num_accepted_tokens_), cu_seqlens(cu_seqlens_);
  const int64_t N = ssm_indices.size(0);

  // checks
  Checks checks("advance_rings");
  checks.index("ring_lengths", lengths, {-1})
      .index("ssm_indices", ssm_indices, {-1})
      .that(ring_size >= 1 && ring_size <= kMostEntries, "ring_size", "1 to 64", ring_size)
      .that(tokens.value_or(0) >= 0, "tokens", "at least 0", tokens.value_or(0));
  if (accepted.defined()) checks.index("num_accepted_tokens", accepted, {N});
  if (cu_seqlens.defined()) checks.index("cu_seqlens", cu_seqlens, {N + 1});
  checks.done();

  // pick
  const auto kernel = pick<kernels::advance_rings>("advance_rings", lengths.device, {});

  // launch
  kernel.launch(ceil_div(N, kernel.tiles.THREADS), {.lengths = index_arg(lengths),
                                                    .read = index_arg(ssm_indices),
                                                    .accepted = index_arg(accepted),
                                                    .cu_seqlens = index_arg(cu_seqlens),
                                                    .min_slot = std::max<int64_t>(min_slot, 0),
                                                    .slots = lengths.size(0),
                                                    .N = N,
                                                    .T = tokens.value_or(cu_seqlens.defined() ? kUnknownTokens : 1),
                                                    .R = ring_size});
}

}  // namespace gdn
