"""Inputs of the token-loop ops: named cases, dense or packed, with every tensor cut from a buffer of NaN."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from harness import assert_close, guarded, seeded

import gdn_ops
from gdn_ops import reference

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
NAMES = ("q", "k", "v", "g", "beta", "A_log", "a", "dt_bias", "b")
# Everything is float32 but one rounding at the store: 2^-9 (bf16), 2^-12 (fp16), 2^-24 and the order of sums (fp32).
RMS = {BF16: 2.5e-3, FP16: 4e-4, FP32: 2e-6}
STATE = {FP32: 1e-6, BF16: 2.5e-3, FP16: 4e-4}  # of states: one rounding at the store


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


def states(*shape, dtype=FP32, device="cpu", gap=0):
    """Random states with ``gap`` NaN between slots, and the storage they lie in."""
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(7)).to(dtype)
    size = values[0].numel()
    storage = torch.full((len(values) * (size + gap) + 64,), float("nan"), dtype=dtype, device=device)
    return storage.as_strided(values.shape, (size + gap, *values.stride()[1:])).copy_(values), storage


def setup(case, device="cpu", slots=None, gap=0, index=torch.int64, count=None):
    """Tokens; and a pool of random states, with NaN between slots, of which sequence n has slot ``slots[n]``."""
    x = case.tokens(device)
    slots = [2 * n + 1 for n in range(case.N)] if slots is None else slots
    x.pool, x.storage = states(2 * case.N + 2 if count is None else count, *x.h0.shape[1:], dtype=case.state, device=device, gap=gap)
    x.slots = guarded(torch.tensor(slots, dtype=index), device)
    return x


def arguments(case, x, options):
    missing = ("g", "beta") if case.raw else ("A_log", "a", "dt_bias", "b")
    given = {n: getattr(x, n) for n in NAMES} | dict.fromkeys(missing)
    given |= dict(ssm_pool=x.pool, ssm_indices=x.slots, cu_seqlens=x.cu_seqlens, scale=case.scale)
    return given | dict(use_qk_l2norm_in_kernel=case.l2norm, state_v_first=case.v_first) | options


def run_update(case, x, **options):
    return gdn_ops.fused_recurrent_gated_delta_rule_update(**arguments(case, x, options))


def compare(got, storage, before, want, what):
    """Slots that the reference changed hold what it says; everything else has the bits it had. Returns which changed."""
    old = before.as_strided(got.shape, got.stride(), got.storage_offset())
    flat = lambda x: x.flatten(0, got.dim() - 4)  # noqa: E731  [slots.., HV, K, V]: one row a state
    changed = [i for i, (w, b) in enumerate(zip(flat(want), flat(old.cpu().double()))) if not torch.equal(bits(w), bits(b))]
    if changed:
        assert_close(flat(got)[changed], flat(want)[changed], STATE[got.dtype], what=what)
    after = storage.clone()
    view = after.as_strided(got.shape, got.stride(), got.storage_offset())
    for i in changed:
        at = torch.unravel_index(torch.tensor(i), got.shape[: got.dim() - 3])
        view[at] = old[at]
    assert torch.equal(bits(after), bits(before)), f"{what}: something else was written"
    return changed


def check(case, x, **options):
    """Runs the op; compares the output and written states with the reference, and everything else, bit by bit, with what was.
    Returns o, the slots written and, with ``intermediate_states`` (of which ``x.steps_storage`` is the storage), the states
    written there, counted through."""
    want_o, want_pool, want_steps = reference.fused_recurrent_gated_delta_rule_update(**arguments(case, x, options))
    before, steps = x.storage.clone(), options.get("intermediate_states")
    steps_before = None if steps is None else x.steps_storage.clone()
    o = run_update(case, x, **options)
    assert o.dtype == case.dtype and o.is_contiguous()
    assert_close(o, want_o, RMS[case.dtype], what="o")
    written = compare(x.pool, x.storage, before, want_pool, "states")
    if steps is None:
        return o, written
    return o, written, compare(steps, x.steps_storage, steps_before, want_steps, "intermediate states")


# ---- speculation -------------------------------------------------------------------------------------------------


def table(case, device, columns=4, first=1, dtype=None):
    """Slots first, first + 1, ... as [N, columns], with neither stride the tensor's own."""
    slots = torch.arange(first, first + case.N * columns, dtype=dtype or case.index, device=device).view(case.N, columns)
    return torch.stack([slots, slots * 0 - 7], 2).transpose(0, 1).contiguous().transpose(0, 1)[..., 0]


def with_steps(case, x, device, slots, columns=4, dtype=FP32, gap=0):
    last = x.h0.shape[1:]
    steps, x.steps_storage = states(slots, columns, *last, dtype=dtype, device=device, gap=gap)
    return steps


def lengths(case):
    return [case.T] * case.B if case.lengths is None else case.lengths
