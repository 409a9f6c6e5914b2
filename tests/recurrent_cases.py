"""Inputs of the token-loop ops: named cases, dense or packed, with every tensor cut from a buffer of NaN."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from harness import guarded, seeded

import gdn_ops

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
NAMES = ("q", "k", "v", "g", "beta", "A_log", "a", "dt_bias", "b")
# Everything is float32 but one rounding at the store: 2^-9 (bf16), 2^-12 (fp16), 2^-24 and the order of sums (fp32).
RMS = {BF16: 2.5e-3, FP16: 4e-4, FP32: 2e-6}


@dataclass(frozen=True)
class Case:
    """``lengths`` (packed, with ``before`` and ``after`` tokens of no sequence around them) or B rows of T tokens."""

    name: str
    H: int = 1
    HV: int = 2
    K: int = 64
    V: int = 32
    B: int = 2
    T: int = 1
    lengths: tuple[int, ...] | None = None
    before: int = 0
    after: int = 0
    dtype: torch.dtype = BF16
    gates: torch.dtype = FP32  # of g, beta, A_log, a, dt_bias, b
    state: torch.dtype = FP32
    index: torch.dtype = torch.int64
    v_first: bool = False
    l2norm: bool = True
    raw: bool = False
    scale: float | None = None

    def __str__(self):
        return self.name

    @property
    def N(self):
        return self.B if self.lengths is None else len(self.lengths)

    def tokens(self, device="cpu", seed=1):
        """q k v g beta A_log a dt_bias b cu_seqlens; h0, one state per sequence."""
        B, T = (self.B, self.T) if self.lengths is None else (1, self.before + sum(self.lengths) + self.after)
        gen, x = seeded(seed), SimpleNamespace()

        def normal(*shape, dtype=self.dtype, scale=1.0):
            return guarded((torch.randn(*shape, generator=gen) * scale).to(dtype), device)

        unit = 1.0 if self.l2norm else self.K**-0.5
        x.q, x.k = normal(B, T, self.H, self.K), normal(B, T, self.H, self.K, scale=unit)
        x.v = normal(B, T, self.HV, self.V)
        x.g = normal(B, T, self.HV, dtype=self.gates, scale=0.3).abs_().neg_()
        x.beta = normal(B, T, self.HV, dtype=self.gates).sigmoid_()
        x.A_log, x.dt_bias = (normal(self.HV, dtype=self.gates) for _ in range(2))
        x.a, x.b = (normal(B, T, self.HV, dtype=self.gates) for _ in range(2))
        x.cu_seqlens = None
        if self.lengths is not None:
            x.cu_seqlens = guarded((torch.tensor((0, *self.lengths)).cumsum(0) + self.before).to(self.index), device)
        last = (self.V, self.K) if self.v_first else (self.K, self.V)
        x.h0 = normal(self.N, self.HV, *last, dtype=self.state)
        return x

    def outside(self, device="cpu"):
        """Which packed tokens belong to no sequence."""
        at = torch.arange(self.before + sum(self.lengths) + self.after, device=device)
        return (at < self.before) | (at >= self.before + sum(self.lengths))


def bits(x: torch.Tensor) -> torch.Tensor:
    """For comparing tensors that may hold NaN."""
    return x.contiguous().view(torch.uint8)


def setup(case, device="cpu", slots=None, gap=0, index=torch.int64):
    """Tokens; and a pool of random states, with NaN between slots, of which sequence n has slot ``slots[n]``."""
    x = case.tokens(device)
    slots = [2 * n + 1 for n in range(case.N)] if slots is None else slots
    pool = torch.randn(2 * case.N + 2, *x.h0.shape[1:], generator=torch.Generator().manual_seed(7)).to(case.state)
    size = pool[0].numel()
    storage = torch.full((len(pool) * (size + gap) + 64,), float("nan"), dtype=case.state, device=device)
    x.pool = storage.as_strided(pool.shape, (size + gap, *pool.stride()[1:])).copy_(pool)
    x.storage, x.slots = storage, guarded(torch.tensor(slots, dtype=index), device)
    return x


def arguments(case, x, options):
    missing = ("g", "beta") if case.raw else ("A_log", "a", "dt_bias", "b")
    given = {n: getattr(x, n) for n in NAMES} | dict.fromkeys(missing)
    given |= dict(ssm_pool=x.pool, ssm_indices=x.slots, cu_seqlens=x.cu_seqlens, scale=case.scale)
    return given | dict(use_qk_l2norm_in_kernel=case.l2norm, state_v_first=case.v_first) | options


def run_update(case, x, **options):
    return gdn_ops.fused_recurrent_gated_delta_rule_update(**arguments(case, x, options))
