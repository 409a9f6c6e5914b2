"""Inputs of the chunk ops: named cases, dense or packed, with every tensor cut from a buffer of NaN, and NaN wherever a kernel has nothing to read."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from harness import guarded, seeded

from gdn_ops import reference

# Lengths that meet every edge of a 64-token chunk, empty sequences first, between and last.
RAGGED = (0, 1, 63, 0, 64, 65, 0)


def solve(k, beta, g, cu_seqlens=None, C=64):
    """G, the gates summed up within each chunk, and A = (I + strict_lower(beta K K^T decay))^-1, in float64."""
    B, T, HV = beta.shape
    G, A = torch.zeros(B, T, HV, dtype=torch.float64), torch.zeros(B, T, HV, C, dtype=torch.float64)
    for _, b, s, e in reference.chunks(B, T, cu_seqlens, C):
        G[b, s:e] = g[b, s:e].cpu().double().cumsum(0)
        b_k = k[b, s:e].cpu().double().repeat_interleave(HV // k.shape[2], 1).transpose(0, 1)  # [HV, L, K]
        b_G, b_beta = G[b, s:e].T, beta[b, s:e].cpu().double().T  # [HV, L]
        L = b_beta[..., None] * (b_k @ b_k.transpose(1, 2)).tril(-1) * (b_G[..., None] - b_G[:, None]).tril().exp()
        A[b, s:e, :, : e - s] = torch.linalg.inv(torch.eye(e - s) + L).transpose(0, 1)
    return G, A


@dataclass(frozen=True)
class Case:
    """``lengths`` (packed, with ``before`` and ``after`` tokens of no sequence around them) or B rows of T tokens."""

    name: str
    H: int = 1
    HV: int = 2
    K: int = 64
    V: int = 64
    B: int = 1
    T: int = 0
    lengths: tuple[int, ...] | None = None
    before: int = 0
    after: int = 0
    C: int = 64
    dtype: torch.dtype = torch.bfloat16
    gates: torch.dtype = torch.float32  # of g, beta and A
    index: torch.dtype = torch.int64
    decay: float = 0.1  # g uniform in (-decay, 0)

    def __str__(self):
        return self.name

    @property
    def tokens(self):
        return self.T if self.lengths is None else self.before + sum(self.lengths) + self.after

    def inputs(self, device="cpu", seed=1, raw_g=None):
        """q k v g beta cu_seqlens h0; G the cumulative gates per chunk; A, w, u, h, v_new of the exact
        algorithm, rounded."""
        B, T, H, HV, K, V = self.B, self.tokens, self.H, self.HV, self.K, self.V
        gen, x = seeded(seed), SimpleNamespace()
        x.q = reference.l2norm(torch.randn(B, T, H, K, generator=gen)).to(self.dtype)
        x.k = reference.l2norm(torch.randn(B, T, H, K, generator=gen)).to(self.dtype)
        x.v = torch.randn(B, T, HV, V, generator=gen).to(self.dtype)
        x.beta = torch.randn(B, T, HV, generator=gen).sigmoid().to(self.gates)
        x.g = (-self.decay * torch.rand(B, T, HV, generator=gen) if raw_g is None else raw_g).to(self.gates)
        x.cu_seqlens, N = None, B
        if self.lengths is not None:
            x.cu_seqlens = (torch.tensor((0, *self.lengths)).cumsum(0) + self.before).to(self.index)
            N = len(self.lengths)
        x.h0 = torch.randn(N, HV, K, V, generator=gen)
        G, A = solve(x.k, x.beta, x.g, x.cu_seqlens, self.C)
        x.G, x.A = G.to(self.gates), A.to(self.gates)
        w, u = reference.recompute_w_u(x.k, x.v, x.beta, A, x.G, x.cu_seqlens)
        x.w, x.u = w.to(self.dtype), u.to(self.dtype)
        h, v_new, _ = reference.chunk_fwd_h(x.k, x.w, x.u, x.G, x.h0, False, self.C, True, x.cu_seqlens)
        x.h, x.v_new = h.to(self.dtype), v_new.to(self.dtype)
        for _, b, s, e in reference.chunks(B, T, x.cu_seqlens, self.C):
            x.A[b, s:e, :, e - s :] = float("nan")  # columns past the end: never read
        for name in ("q", "k", "v", "g", "beta", "G", "A", "w", "u", "v_new"):
            getattr(x, name)[:, self.outside()] = float("nan")
        for name, t in vars(x).items():
            if t is not None:
                setattr(x, name, guarded(t, device))
        return x

    def outside(self):
        """Which tokens belong to no sequence."""
        t = torch.arange(self.tokens)
        return (t < self.before) | (t >= self.tokens - self.after)
