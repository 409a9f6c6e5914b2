// Arguments of the causal convolution kernel (causal_conv1d.cu), as host, CPU twin and device see them.
#pragma once

#include "conv.h"

namespace gdn {

// What a variant can do beyond a walk along the tokens: mark it (seq_idx, checkpoints), or take whole rows at once,
// which speculative decoding asks for (accepted counts, circular lines, windows, trees) and outputs in x's place.
constexpr int32_t kWalk = 0, kMarked = 1, kRows = 2;

struct CausalConv1dArgs {
  const void* x;
  void* y;
  TokensArg x_at, y_at;
  GroupsArg groups;  // where x's channels are
  FilterArg filter;
  LinesArg state;            // data null: every history is zeros and none is kept
  IndexArg cu_seqlens;       // [N + 1]; words 0: N rows of T tokens
  IndexArg indices;          // [N] slots; words 0: slot n belongs to sequence n
  const uint8_t* has_state;  // [N] flags, stride apart; null: `history` for all
  int64_t has_state_stride;
  int64_t N, T, D;
  int64_t min_slot;  // slots outside [min_slot, state.slots) are padding
  int64_t chunks;    // chunk slots of 2^log_BT tokens
  int32_t log_BT;
  int32_t W;
  int32_t line;     // columns of a state that count; the history is the last W - 1 of them, the others shift along
  int32_t history;  // flag: sequences continue their state, without has_state

  // kMarked and kRows
  TableArg also;   // [N, columns] slots of another pool, of which the accepted count says the column: those outside
  int64_t n_also;  // [min_slot, n_also) make a row padding; words 0: not given
  int64_t most_tokens;  // kRows: a row with more is padding

  // kMarked
  int32_t reads_only;           // flag: states stay as they are
  TableArg seq_idx;             // [B, T]: taps do not cross its changes, negative ones give zeros; words 0: none
  LinesArg checkpoints;         // [slots, D, W - 1]; data null: none
  TableArg checkpoint_indices;  // [N, M] slots, of the multiples of checkpoint_every among a sequence's tokens
  IndexArg prefix_lens;         // [N] tokens before this call; words 0: none
  int64_t checkpoint_every;

  // kRows
  IndexArg accepted;   // [N]: the history starts at column accepted - 1 of `line` columns; words 0: not given
  IndexArg positions;  // [N]: lines are rings, token t at column (position + t) % line; words 0: they are not
  TableArg parents;    // [N, S]: the token before each of a draft tree; words 0: a chain
  LinesArg windows;    // [slots, S, D, W - 1]: the last inputs after every token; then the state stays as it is
  int64_t window_stride_t;
  int64_t window_tokens;    // S
  IndexArg window_indices;  // [N] slots; words 0: slot n
};

}  // namespace gdn
