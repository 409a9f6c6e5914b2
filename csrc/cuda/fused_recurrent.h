// Arguments of the token-loop kernel (fused_recurrent.cu), as host, CPU twin and device see them.
#pragma once

#include "common.h"

namespace gdn {

struct FusedRecurrentArgs {
  RowsArg q, k, v;
  GateArg g, beta;         // [B, T, HV]; raw gates: a and b
  GateArg A_log, dt_bias;  // [HV], by at.stride_h; no data: gates are given, not raw
  void* o;                 // [B, T, HV, V], contiguous
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
  int32_t KV;        // K * V
  int32_t o_stride;  // HV * V
  int32_t dtype;     // of q, k, v and o
  float scale;
  int32_t l2norm;   // flag: q and k are normalised here
  int32_t ht_fp32;  // flag: states are written in fp32, whatever dtype they are read in
};

}  // namespace gdn
