"""Valid calls of the ops on frozen states and rings: a part of tests/samples.py."""

import torch
import torch.nn.functional as F
from sample_inputs import BF16, FP16, FP32, HV, LENS, D, Draw, H, pick, tokens
from samples_recurrent import ODD, update


def rings(r, slots, R, K=D, V=D):
    """Keys of length one, as after l2norm; every slot has entries in all places."""
    keys = F.normalize(r.normal(slots, R, H, K), dim=-1)
    return dict(ring_k=keys, ring_u=r.normal(slots, R, HV, V), ring_g=-0.1 * r.normal(slots, R, HV).abs())


def ring(R=6, K=D, V=D, **more):
    """Slots 0 to 6 hold 0 to 6 entries; row 1 is padding."""

    def build(device):
        args, r = update(rows=4, K=K, V=V, **more)(device), Draw(device, 1)
        slots = len(args["ssm_pool"])
        return args | rings(r, slots, R, K, V) | dict(ring_lengths=r.ints([n % (R + 1) for n in range(slots)], torch.int32))

    return build


def ring_packed(device):
    """Rows of 65 tokens, which are padding, of 64, 30, 1 and none; rings with and without room for them."""
    x, r, N = tokens(device, True)
    args = pick(x, "q", "k", "v", "g", "beta", "cu_seqlens", **dict.fromkeys(("A_log", "a", "dt_bias", "b")))
    args |= dict(ssm_pool=r.normal(7, HV, D, D, scale=0.1), ssm_indices=r.ints([2, 4, 6, 0, 1])) | rings(r, 7, 64)
    return args | dict(ring_lengths=r.ints([3, 40, 5, 1, 9, 0, 64], torch.int32), use_qk_l2norm_in_kernel=True)


def advance(accepted=False, packed=False):
    """Rows with room, due, full; row 1 is padding."""

    def build(device):
        r = Draw(device)
        args = dict(ring_lengths=r.ints([0, 3, 4, 6, 6, 2, 1, 5], torch.int32), ssm_indices=r.ints([7, -1, 0, 3, 1]), ring_size=6, tokens=3)
        args |= dict(num_accepted_tokens=r.ints([1, 2, 3, 3, 2], torch.int32)) if accepted else {}
        return args | (dict(tokens=sum(LENS) + 3, cu_seqlens=r.ints([0, 3, 6, 6, 8, 11])) if packed else {})

    return build


def commit(v_first=False, state=FP32, K=D, V=D):
    """All entries, none, some, and padding."""

    def build(device):
        r = Draw(device)
        pool = r.normal(6, 2, HV, *((V, K) if v_first else (K, V)), scale=0.1).to(state)[:, 1]
        args = dict(ssm_pool=pool, num_entries=r.ints([20, 0, 3, 5], torch.int32), ssm_indices=r.ints([4, 0, 2, -1]))
        return args | rings(r, 6, 20, K, V) | dict(state_v_first=v_first)

    return build


RING = {
    "fused_recurrent_gated_delta_rule_ring": [
        ring(), ring(v_first=True), ring(raw=False, state=BF16, index=torch.int64), ring(T=3, v_first=True), ring(T=2, state=FP16, dtype=FP16),
        ring(dtype=FP16, **ODD), ring(T=3, v_first=True, state=BF16, **ODD), ring_packed,
    ],
    "advance_rings": [advance(), advance(accepted=True), advance(accepted=True, packed=True)],
    "commit_accepted": [commit(), commit(v_first=True, state=BF16), commit(state=FP16, **ODD)],
}  # fmt: skip
