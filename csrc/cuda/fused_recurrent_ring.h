// Arguments of the kernel that steps on frozen states and rings (fused_recurrent_ring.cu), as host, CPU twin and device
// see them.
#pragma once

#include "common.h"

namespace gdn {

constexpr int32_t kMostEntries = 64;  // of a ring

// A tensor of the ring, [slots, R, ...], contiguous within a slot.
struct RingArg {
  float* data;
  int64_t stride;  // from slot to slot
};

struct FusedRecurrentRingArgs {
  RowsArg q, k, v;
  GateArg g, beta;         // [B, T, HV]; raw gates: a and b
  GateArg A_log, dt_bias;  // [HV]; no data: gates are given, not raw
  void* o;                 // [B, T, HV, V], tokens o_stride apart
  void* pool;              // frozen states, [HV, K, V] or [HV, V, K] at slot * pool_stride
  int64_t pool_stride;
  RingArg ring_k;       // [R, H, K]: keys as used
  RingArg ring_u;       // [R, HV, V]: what was written along them
  RingArg ring_g;       // [R, HV]: log decays of the entries' tokens
  IndexArg lengths;     // [slots]: live entries of a ring
  IndexArg entries;     // [N]: this many entries are folded, and there are no tokens; words 0: a step
  IndexArg read;        // [N] slots
  IndexArg cu_seqlens;  // [N + 1]; words 0: N rows of T tokens
  int64_t min_slot;     // slots outside [min_slot, slots) are padding
  int64_t slots;
  Divisor units;   // of a row: HV * slices
  Divisor slices;  // of a head: ceil(V / BV)
  Divisor ratio;   // HV / H
  int32_t n_slices;
  int32_t N;
  int32_t T;  // tokens of a row
  int32_t R;  // entries of a ring
  int32_t H;
  int32_t HV;
  int32_t K;
  int32_t V;
  int32_t group;  // HV / H
  int64_t o_stride;
  int32_t dtype;        // of q, k, v and o
  int32_t state_dtype;  // of pool
  float scale;
  int32_t l2norm;    // flag: q and k are normalised here
  int32_t clusters;  // flag: the blocks of a row's key head are a cluster
};

}  // namespace gdn
