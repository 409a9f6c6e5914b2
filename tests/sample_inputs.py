"""Seeded inputs, and builders of calls of the chunk steps (see tests/samples.py)."""

import torch
import torch.nn.functional as F

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
H, HV, D = 2, 4, 128
LENS = (65, 0, 1, 64, 30)  # packed: 160 tokens, and 3 more that belong to no sequence
SHORT = (5, 0, 1, 4, 3)  # the same for what works token by token


class Draw:
    """Random tensors from one seed, made on the CPU so that every device gets the same."""

    def __init__(self, device, seed=0):
        self.device, self.generator = device, torch.Generator().manual_seed(seed)

    def normal(self, *shape, dtype=FP32, scale=1.0):
        return (torch.randn(*shape, generator=self.generator) * scale).to(dtype).to(self.device)

    def ints(self, values, dtype=torch.int64):
        return torch.tensor(values, dtype=dtype, device=self.device)

    def offsets(self, dtype=torch.int64, lens=LENS):
        return self.ints([0, *torch.tensor(lens).cumsum(0).tolist()], dtype)


def tokens(device, packed=False, dtype=BF16, K=D, V=D, T=130, lens=LENS):
    """q, k (normalised), v, gates g (log) and beta, cu_seqlens; N sequences."""
    r = Draw(device)
    B, T = (1, sum(lens) + 3) if packed else (2, T)
    x = {n: F.normalize(r.normal(B, T, H, K), dim=-1).to(dtype) for n in "qk"}
    x |= dict(v=r.normal(B, T, HV, V, dtype=dtype), g=-0.1 * r.normal(B, T, HV).abs(), beta=r.normal(B, T, HV).sigmoid())
    x |= dict(cu_seqlens=r.offsets(lens=lens) if packed else None)
    return x, r, len(lens) if packed else B


def pick(x, *names, **more):
    return {n: x[n] for n in names} | more


# ---- chunk steps -----------------------------------------------------------------------------------------------


def strictly_lower(r, x, C, dtype=FP32):
    """[B, T, HV, C]: in each chunk of each sequence a small strictly lower triangular matrix."""
    B, T = x["v"].shape[:2]
    A = r.normal(B, T, HV, C, scale=0.1)
    bounds = x["cu_seqlens"].tolist() if x["cu_seqlens"] is not None else [0, T]
    row = torch.full((T,), 0, device=A.device)
    for first, last in zip(bounds, bounds[1:]):
        row[first:last] = torch.arange(last - first, device=A.device) % C
    return (A * (torch.arange(C, device=A.device) < row[:, None])[None, :, None]).to(dtype)


def cumsum(packed=False, vector=False, reverse=False):
    def build(device):
        x, r, _ = tokens(device, packed)
        g = r.normal(*x["g"].shape, 48) if vector else x["g"]
        return dict(g=g, chunk_size=64, reverse=reverse, cu_seqlens=x["cu_seqlens"])

    return build


def kkt(packed=False, dtype=BF16, K=D):
    def build(device):
        x, _, _ = tokens(device, packed, dtype, K)
        return pick(x, "k", "beta", "cu_seqlens", g=x["g"] * 3)

    return build


def solve(packed=False, C=64):
    def build(device):
        x, r, _ = tokens(device, packed)
        return dict(A=strictly_lower(r, x, C), cu_seqlens=x["cu_seqlens"])

    return build


def wu(packed=False, dtype=BF16, K=D, V=D):
    def build(device):
        x, r, _ = tokens(device, packed, dtype, K, V)
        return pick(x, "k", "v", "beta", "g", "cu_seqlens", A=strictly_lower(r, x, 64, dtype))

    return build


def fwd_h(packed=False, v_first=False, dtype=BF16, K=D, V=D, state=True):
    def build(device):
        x, r, N = tokens(device, packed, dtype, K, V)
        B, T = x["v"].shape[:2]
        h0 = r.normal(N, HV, *((V, K) if v_first else (K, V)), scale=0.1) if state else None
        w = r.normal(B, T, HV, K, dtype=dtype, scale=0.1)
        return pick(x, "k", "g", "cu_seqlens", w=w, u=x["v"], initial_state=h0, output_final_state=True, state_v_first=v_first)

    return build


def fwd_o(packed=False, v_first=False, dtype=BF16, K=D, V=D):
    def build(device):
        x, r, N = tokens(device, packed, dtype, K, V)
        B, T = x["v"].shape[:2]
        rows = -(-T // 64) + (N if packed else 0)
        h = r.normal(B, rows, HV, *((V, K) if v_first else (K, V)), dtype=dtype, scale=0.1)
        return pick(x, "q", "k", "v", "g", "cu_seqlens", h=h, state_v_first=v_first)

    return build


def index(**more):
    def build(device):
        r = Draw(device)
        return dict(cu_seqlens=r.offsets(more.get("dtype", torch.int64))) | {k: v for k, v in more.items() if k != "dtype"}

    return build
