"""Valid calls of the whole-layer ops: a part of tests/samples.py."""

import torch
from sample_inputs import BF16, FP32, HV, D, Draw, H
from samples_recurrent import rounded

LENS = [66, 0, 1, 70]


def weights(r, K, V, W=4, dtype=BF16, v_first=True, slots=9, extra=0, state=FP32):
    """What a layer holds: parameters and pools."""
    C = 2 * H * K + HV * V
    last = (V, K) if v_first else (K, V)
    return dict(
        conv_states=r.normal(slots, C, W - 1 + extra, dtype=dtype),
        ssm_pool=r.normal(slots, 2, HV, *last, scale=0.1).to(state)[:, 1],
        conv_weight=r.normal(C, W, dtype=dtype, scale=0.5),
        conv_bias=None,
        A_log=r.normal(HV),
        dt_bias=r.normal(HV),
        norm_weight=r.normal(V, dtype=dtype),
    )


def rows(r, lead, K, V, dtype=BF16, interleaved=False, one_row=False):
    """Columns of one wide projection."""
    wide = 2 * H * K + 2 * HV * V
    mixed = r.normal(*lead, wide + 2 * HV + 8, dtype=dtype)
    if one_row:
        return dict(mixed_qkvz=mixed[..., : wide + 2 * HV], ba=None)
    return dict(mixed_qkvz=mixed[..., :wide], ba=mixed[..., wide : wide + 2 * HV], interleaved=interleaved)


def prefill(
    dtype=BF16, K=D, V=D, interleaved=False, one_row=False, v_first=True, checkpointed=False, state=FP32, fp8=False, separate=False,
    packed=True, write_state=True,
):  # fmt: skip
    """Row 1 is empty, row 2 new; the last three tokens belong to no sequence. ``separate`` slots of the two pools, of which
    row 3 has one alone. Not packed: one sequence."""

    def build(device):
        r, N = Draw(device), len(LENS)
        args = rows(r, (sum(LENS) + 3,), K, V, dtype, interleaved, one_row) | weights(r, K, V, 4, dtype, v_first, state=state)
        args |= dict(cache_indices=r.ints([7, 2, 4, 1]), has_initial_state=r.ints([1, 1, 0, 1], torch.bool), state_v_first=v_first)
        args |= dict(cu_seqlens=r.ints([0, *torch.tensor(LENS).cumsum(0).tolist()], torch.int32))
        if separate:
            args |= dict(ssm_indices=r.ints([0, 3, 8, -1], torch.int32))
        if not packed:
            args |= dict(cu_seqlens=None, cache_indices=args["cache_indices"][:1], has_initial_state=args["has_initial_state"][:1])
        if not write_state:  # slots may repeat
            args |= dict(write_state=False, cache_indices=torch.full_like(args["cache_indices"], 4))
        if checkpointed:
            C, last = 2 * H * K + HV * V, args["ssm_pool"].shape[1:]
            args |= dict(ssm_checkpoints=r.normal(6, *last), conv_checkpoints=r.normal(6, C, 3, dtype=dtype), checkpoint_every=64)
            args |= dict(checkpoint_indices=r.ints([[5, 1], [2, -1], [3, -1], [0, 4]]), prefix_lens=r.ints([0, 64, 63, 100][:N]))
        return args | (dict(out_scale=r.normal(1).abs() + 0.1) if fp8 else {})

    return build


def decode(
    lead=(3,), dtype=BF16, K=D, V=D, interleaved=False, one_row=False, v_first=True, state=FP32, flow="", lens=None, min_slot=0, fp8=False,
    separate=False,
):  # fmt: skip
    """``flow``: "slots" (2-D slots and accepted counts), "steps" (intermediate states and windows), "tree"."""

    def build(device):
        r, N = Draw(device), len(lens) if lens else lead[0]
        S = max(lens) if lens else lead[1] if len(lead) == 2 else 1
        args = rows(r, (sum(lens) + 2,) if lens else lead, K, V, dtype, interleaved, one_row)
        args |= weights(r, K, V, 4, dtype, v_first, N * S + 3, S - 1 if flow == "slots" else 0, state)
        args |= dict(
            cache_indices=r.ints([-1 if n == 1 else 2 + n for n in range(N)], torch.int32), state_v_first=v_first, min_slot=min_slot
        )
        if lens:
            args |= dict(cu_seqlens=r.ints([0, *torch.tensor(lens).cumsum(0).tolist()], torch.int32))
        if separate:
            args |= dict(ssm_indices=r.ints([N + 2 - n for n in range(N)]))
        if flow == "slots":
            args |= dict(ssm_indices=r.ints([[-1 if n == 1 else 1 + n * S + t for t in range(S)] for n in range(N)], torch.int32))
            args |= dict(num_accepted_tokens=r.ints([1 + n % S for n in range(N)], torch.int32))
        elif flow:
            C, last = 2 * H * K + HV * V, args["ssm_pool"].shape[1:]
            args |= dict(intermediate_states=r.normal(N, S, *last), intermediate_windows=r.normal(N, S, C, 3, dtype=dtype))
            args |= dict(intermediate_indices=r.ints(list(range(N))[::-1]), update_state=False)
            if flow == "tree":
                args |= dict(parents=r.ints([[-1, 0, 0, 1][:S]] * N))
        return args | (dict(out_scale=r.normal(1).abs() + 0.1) if fp8 else {})

    return build


ODD = dict(K=48, V=100)
LAYER = {
    "gdn_prefill": [
        prefill(), prefill(interleaved=True, v_first=False), prefill(one_row=True, checkpointed=True), prefill(torch.float16, fp8=True),
        prefill(state=BF16, checkpointed=True, interleaved=True, **ODD), prefill(separate=True, checkpointed=True),
        prefill(write_state=False), rounded(prefill(state=BF16)), rounded(prefill(v_first=False, interleaved=True), fp8=True),
    ],
    "gdn_decode": [
        decode(), decode(interleaved=True, v_first=False), decode(one_row=True, state=BF16, min_slot=1), decode(dtype=FP32, **ODD),
        decode((3, 4), flow="slots"), decode((3, 4), flow="steps", interleaved=True), decode((3, 4), flow="tree", v_first=False),
        decode(lens=[1, 4, 0, 3], flow="slots", interleaved=True), decode(fp8=True, dtype=torch.float16),
        decode((4,), separate=True), rounded(decode(state=BF16)), rounded(decode((3, 4), flow="slots"), fp8=True),
    ],
}  # fmt: skip
