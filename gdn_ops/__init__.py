"""Gated DeltaNet kernels as ``torch.ops.gdn.*``, compiled ahead of time."""

from gdn_ops import tracing
from gdn_ops._library import build_info, warmup
from gdn_ops.chunk import chunk_fwd_h, chunk_fwd_o, chunk_gated_delta_rule, chunk_gated_delta_rule_update, recompute_w_u
from gdn_ops.conv import causal_conv1d_fn, causal_conv1d_update, conv_pack_gdn_decode_inputs
from gdn_ops.index import prepare_chunk_indices, prepare_chunk_offsets, prepare_lens
from gdn_ops.kkt import chunk_kkt_solve, chunk_local_cumsum, chunk_scaled_dot_kkt, solve_tril
from gdn_ops.layer import gdn_decode, gdn_prefill
from gdn_ops.norm import fused_gdn_gating, gated_rmsnorm, gated_rmsnorm_fp8, l2norm
from gdn_ops.pool import copy_slots, gather_states, scatter_accepted_states, scatter_states, zero_slots
from gdn_ops.projection import fused_post_conv_prep, split_qkvzba
from gdn_ops.recurrent import (
    fused_recurrent_gated_delta_rule,
    fused_recurrent_gated_delta_rule_packed_decode,
    fused_recurrent_gated_delta_rule_update,
)
from gdn_ops.ring import advance_rings, commit_accepted, fused_recurrent_gated_delta_rule_ring
from gdn_ops.spec import NONE, SIGMOID, SILU

tracing.register()

__version__ = build_info()["version"]
__all__ = [
    "build_info",
    "warmup",
    "NONE",
    "SILU",
    "SIGMOID",
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "conv_pack_gdn_decode_inputs",
    "chunk_fwd_h",
    "chunk_fwd_o",
    "chunk_gated_delta_rule",
    "chunk_gated_delta_rule_update",
    "fused_gdn_gating",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_gated_delta_rule_packed_decode",
    "fused_recurrent_gated_delta_rule_update",
    "fused_recurrent_gated_delta_rule_ring",
    "advance_rings",
    "commit_accepted",
    "gated_rmsnorm",
    "gated_rmsnorm_fp8",
    "gdn_decode",
    "gdn_prefill",
    "l2norm",
    "chunk_kkt_solve",
    "chunk_local_cumsum",
    "chunk_scaled_dot_kkt",
    "prepare_chunk_indices",
    "prepare_chunk_offsets",
    "prepare_lens",
    "recompute_w_u",
    "solve_tril",
    "copy_slots",
    "gather_states",
    "scatter_accepted_states",
    "scatter_states",
    "zero_slots",
    "split_qkvzba",
    "fused_post_conv_prep",
]
