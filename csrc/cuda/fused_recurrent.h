// Arguments of the token-loop kernel (fused_recurrent.cu), as host, CPU twin and device see them.
#pragma once

#include "common.h"

namespace gdn {

// A draft tree has at most this many tokens a row: the ancestors of one are the bits of a word.
constexpr int32_t kMostTreeTokens = 64;

// States kept on the way along prompts: after every multiple of `every` tokens, counted from prefix tokens before the
// call.
struct CheckpointArgs {
  void* data;          // [slots, HV, ..]; null: none
  IndexArg prefix;     // [N]; words 0: zeros
  IndexArg slots;      // [N, columns]: where the j-th multiple of row n goes; outside [0, n_slots): nowhere
  int64_t slots_step;  // from a column to the next, in words
  int64_t columns, every;
  int64_t stride, n_slots;  // of data
  int32_t dtype;
};

// What speculative decoding, checkpoints and pools in other dtypes take besides. Zeros, and the largest most_tokens,
// ask for nothing of it.
struct SpecArgs {
  IndexArg accepted;      // [N]: states are read from column accepted - 1 of `read`; words 0: from column 0
  int64_t read_step;      // from a column of `read` to the next, in words; 0: `read` is [N]
  int64_t write_step;     // the same of `write`
  int32_t read_columns;   // accepted counts outside [1, read_columns] make a row padding
  int32_t every;          // flag: the state after token t goes to column t of `write`; else one state after the last
  int32_t most_tokens;    // a row with more tokens is padding
  int32_t steps_dtype;    // of steps
  void* steps;            // [slots, tokens, HV, ..]: the state after token t at [slot, t]; null: none
  IndexArg steps_slots;   // [N]; words 0: n
  int64_t n_steps_slots;  // slots outside [0, n_steps_slots) skip the store
  int64_t steps_stride;   // elements from slot to slot
  int64_t steps_stride_t;
  IndexArg parents;      // [N, tokens]: the token whose state token t continues from; words 0: the one before
  int64_t parents_step;  // from a token's entry to the next, in words
  CheckpointArgs checkpoints;
  IndexArg also;  // [N] slots of another pool: those outside [min_slot, n_also) make a row padding; words 0: not given
  int64_t n_also;
  const int64_t* seed;  // bf16 states are rounded at random (rounding.h) on their way to the pool; null: to nearest
  const float* scales;  // [HV], scales_stride apart: states are fp8 times this
  int64_t scales_stride;
};

struct FusedRecurrentArgs {
  RowsArg q, k, v;
  GateArg g, beta;         // [B, T, HV]; raw gates: a and b
  GateArg A_log, dt_bias;  // [HV]; no data: gates are given, not raw
  void* o;                 // [B, T, HV, V], tokens o_stride apart
  const void* h0;          // states read, [HV, K, V] or [HV, V, K] at slot * h0_stride; null: zeros
  void* ht;                // states written; null: none
  int64_t h0_stride;       // elements
  int64_t ht_stride;
  IndexArg read;        // [N] slots; words 0: state n, and an empty sequence's state is copied
  IndexArg write;       // [N] slots; words 0: as read
  IndexArg cu_seqlens;  // [N + 1]; words 0: N rows of T tokens
  int64_t min_slot;     // slots outside [min_slot, slots) are padding
  int64_t slots;
  const uint8_t* has_state;  // [N] flags, stride apart; null: all true
  int64_t has_state_stride;
  Divisor head_blocks;    // n_head_blocks
  Divisor heads;          // HV
  Divisor ratio;          // HV / H
  int32_t n_head_blocks;  // blocks of one head: ceil(V / (BV * warps))
  int32_t N;
  int32_t T;  // tokens of a row
  int32_t HV;
  int32_t K;
  int32_t V;
  int32_t KV;     // K * V
  int32_t group;  // HV / H
  int64_t o_stride;
  int32_t dtype;  // of q, k, v and o
  float scale;
  int32_t l2norm;       // flag: q and k are normalised here
  int32_t state_dtype;  // of h0, and of ht
  int32_t ht_fp32;      // flag: states are written in fp32, whatever dtype they are read in
  SpecArgs spec;
};

}  // namespace gdn
