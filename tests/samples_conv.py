"""Valid calls of the convolutions, for tests/samples.py."""

import torch
from sample_inputs import BF16, FP16, FP32, LENS, Draw


def conv_fn(W=4, channels_first=False, pool=True, dtype=BF16, C=192, bias=True, activation=1):
    def build(device):
        r, N, T = Draw(device), len(LENS), sum(LENS) + 3
        x = r.normal(C, T, dtype=dtype) if channels_first else r.normal(T, C, dtype=dtype)
        args = dict(x=x, weight=r.normal(C, W, dtype=dtype, scale=0.5), bias=r.normal(C, dtype=dtype) if bias else None)
        args |= dict(query_start_loc=r.offsets(torch.int32), activation=activation, channels_first=channels_first)
        if pool:
            args |= dict(conv_states=r.normal(N + 2, C, W - 1, dtype=dtype), cache_indices=r.ints([3, 1, -1, 5, 0], torch.int32))
            args |= dict(has_initial_state=r.ints([1, 0, 1, 0, 1], torch.bool))
        return args

    return build


def conv_update(W=4, indexed=True, dtype=BF16, C=192, L=None):
    def build(device):
        r, B = Draw(device), 3
        L_ = L or (W - 1 if indexed else W)
        args = dict(x=r.normal(B, C, dtype=dtype), conv_state=r.normal(B + 2 if indexed else B, C, L_, dtype=dtype))
        args |= dict(weight=r.normal(C, W, dtype=dtype, scale=0.5), bias=None, activation=1)
        return args | (dict(conv_state_indices=r.ints([4, -1, 1], torch.int32)) if indexed else {})

    return build


def conv_marks(checkpoints=True, dtype=BF16, C=64, every=32):
    """Checkpoints of packed sequences, or samples packed in rows."""

    def build(device):
        r, N, T = Draw(device), len(LENS), sum(LENS) + 3
        x, weight = r.normal(T, C, dtype=dtype), r.normal(C, 4, dtype=dtype, scale=0.5)
        if not checkpoints:
            return dict(x=x, weight=weight, seq_idx=(torch.arange(T, device=device) // 50).view(1, T))
        slots = [[3 * n + j for j in range(3)] for n in range(N)]
        args = dict(query_start_loc=r.offsets(), checkpoints=r.normal(3 * N, C, 3, dtype=dtype), checkpoint_every=every)
        return args | dict(x=x, weight=weight, checkpoint_indices=r.ints(slots, torch.int32), prefix_lens=r.ints([0, 5, 31, 64, 7]))

    return build


def conv_verify(T=4, kind="accepted", dtype=BF16, C=64, W=4):
    """Drafts: accepted counts and packed rows, trees with windows, rings; row 1 is padding."""

    def build(device):
        r, B = Draw(device), 3
        args = dict(x=r.normal(B, T, C, dtype=dtype).mT, weight=r.normal(C, W, dtype=dtype), activation=1)
        args |= dict(conv_state=r.normal(B + 2, C, W + 2, dtype=dtype), conv_state_indices=r.ints([4, -1, 1], torch.int32))
        if kind == "accepted":
            args |= dict(x=r.normal(2 * T, C, dtype=dtype), query_start_loc=r.ints([0, T, T, T + 2], torch.int32))
            return args | dict(num_accepted_tokens=r.ints([2, 1, 3]))
        if kind == "ring":
            return args | dict(cache_seqlens=r.ints([2, 100, 3], torch.int32))
        args |= dict(intermediate_windows=r.normal(B, T, C, W - 1, dtype=dtype))
        return args | dict(parents=r.ints([[-1, 0, 0, 1]] * B), intermediate_indices=r.ints([2, 0, 1])) if kind == "tree" else args

    return build


def conv_interleaved(device):
    r = Draw(device)
    args = dict(x=r.normal(5, 2 * (32 + 64), dtype=BF16), weight=r.normal(2 * (32 + 32), 4, dtype=BF16), H=2, K=16)
    return args | dict(conv_state=r.normal(5, 128, 3, dtype=BF16))


def conv_pack(dtype=BF16, H=2, HV=4, K=32, V=32, W=4, flat=False):
    """Columns of one projection row; row 1 is padding."""

    def build(device):
        r, B, D = Draw(device), 3, 2 * H * K + HV * V
        x, z, b, a = r.normal(B, D + HV * (V + 2), dtype=dtype).split([D, HV * V, HV, HV], 1)
        args = dict(mixed_qkv=x, z=z if flat else z.unflatten(1, (HV, V)), a=a, b=b, conv_states=r.normal(B + 2, D, W - 1, dtype=dtype))
        args |= dict(weight=r.normal(D, W, dtype=dtype, scale=0.5), bias=None, cache_indices=r.ints([4, -1, 1], torch.int32))
        return args | dict(activation=1, H=H, K=K, HV=HV, V=V)

    return build


CONV = {
    "causal_conv1d_fn": [
        conv_fn(), conv_fn(channels_first=True), conv_fn(W=3, pool=False, dtype=FP16, C=66), conv_fn(W=2, dtype=FP32, activation=0),
        conv_marks(), conv_marks(checkpoints=False, dtype=FP16),
    ],
    "causal_conv1d_update": [
        conv_update(), conv_update(indexed=False), conv_update(W=3, dtype=FP16, C=66), conv_update(L=5), conv_verify(),
        conv_verify(kind="tree"), conv_verify(kind="windows", W=3, C=65), conv_verify(kind="ring"), conv_interleaved,
    ],
    "conv_pack_gdn_decode_inputs": [conv_pack(), conv_pack(flat=True, HV=2), conv_pack(dtype=FP16, K=10, V=6), conv_pack(W=3)],
}  # fmt: skip
