from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from harness import assert_close, guarded, seeded

import gdn_ops
from gdn_ops import NONE, SILU, reference

RMS = {torch.float32: 2e-6, torch.bfloat16: 2.5e-3, torch.float16: 4e-4}  # rounding of the stored output
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@dataclass(frozen=True)
class Case:
    B: int = 5
    H: int = 2
    HV: int = 4
    K: int = 16
    V: int = 16
    W: int = 4
    L: int = 3
    dtype: torch.dtype = BF16
    state: torch.dtype | None = None
    gates: torch.dtype | None = None  # of a and b
    bias: bool = False
    activation: int = SILU
    index: torch.dtype = torch.int32
    wide: int = 0  # mixed_qkv, z, b, a are columns of one row, that far from its start; 0: tensors of their own

    def inputs(self, device):
        r, D, Z = seeded(0), 2 * self.H * self.K + self.HV * self.V, self.HV * self.V
        normal = lambda *shape, dtype=self.dtype: torch.randn(*shape, generator=r).to(dtype)  # noqa: E731
        a = dict(weight=normal(D, self.W, dtype=self.state or self.dtype), bias=normal(D) if self.bias else None)
        a |= dict(conv_states=normal(self.B + 2, D, self.L, dtype=self.state or self.dtype))
        a |= dict(cache_indices=torch.randperm(self.B + 2, generator=r)[: self.B].to(self.index))
        parts = dict(mixed_qkv=D, z=Z, b=self.HV, a=self.HV)
        a |= {n: normal(self.B, size, dtype=self.gates if self.gates and n in "ab" else self.dtype) for n, size in parts.items()}
        a = {k: v if v is None else guarded(v, device) for k, v in a.items()}
        if self.wide:
            row = torch.full((self.B, self.wide + sum(parts.values()) + 3), float("nan"), dtype=self.dtype, device=device)
            columns = row[:, self.wide : -3].split(list(parts.values()), 1)
            a |= {n: c.copy_(a[n]) for n, c in zip(parts, columns)}
        if self.B % 2:
            a["z"] = a["z"].unflatten(1, (self.HV, self.V))
        return SimpleNamespace(**a, **{n: getattr(self, n) for n in ("activation", "H", "K", "HV", "V")})


def check(a, **other):
    before = a.conv_states.clone()
    *want, states = reference.conv_pack_gdn_decode_inputs(**vars(a) | other)
    got = gdn_ops.conv_pack_gdn_decode_inputs(**vars(a) | other)
    for name, x, y, like in zip("qkvzab", got, want, (a.mixed_qkv,) * 3 + (a.z, a.a, a.b)):
        assert x.is_contiguous() and x.dtype == like.dtype
        assert_close(x, y, RMS[x.dtype], what=name)
    assert all(torch.equal(x.cpu().double(), y) for x, y in zip(got[3:], want[3:]))
    assert torch.equal(a.conv_states.cpu().double(), states)
    a.conv_states.copy_(before)
    assert all(torch.equal(x, y) for x, y in zip(got, gdn_ops.conv_pack_gdn_decode_inputs(**vars(a) | other)))
    return got


CASES = [
    Case(),
    Case(B=4, H=1, HV=3, gates=FP32, index=torch.int64),
    Case(B=1, H=1, HV=1, bias=True),
    Case(wide=4, HV=2, V=32, bias=True),
    Case(wide=3, K=12),
    Case(wide=8, HV=8, L=6, dtype=FP16, activation=NONE),
    Case(K=10, V=7, dtype=FP16, gates=FP32, state=FP32),
    Case(W=2, L=1, dtype=FP32, bias=True),
    Case(W=3, L=4, H=3, HV=6, wide=1),
    Case(B=300, K=4, V=4),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(backend, case):
    check(case.inputs(backend.device))


def test_is_the_convolution_and_a_split(backend):
    """Bit-equal, on channel-last, sliced and strided pools as well, of which nothing else is touched."""
    a = Case(D := 5).inputs(backend.device)
    states = a.conv_states.clone()
    y = gdn_ops.causal_conv1d_update(a.mixed_qkv, states, a.weight, None, SILU, a.cache_indices)
    parts = [x.flatten() for x in y.split([32, 32, 64], 1)]
    new = lambda *shape: torch.full(shape, 77.0, dtype=BF16, device=backend.device)  # noqa: E731
    for pool in (
        new(D + 2, 128, 3),
        new(D + 2, 3, 128).mT,
        new(D + 2, 128, 8)[:, :, 3:6],
        new(2, D + 2, 128, 3)[1],
        new(D + 2, 3, 131).mT[:, 3:],
    ):
        pool.copy_(a.conv_states)
        got = gdn_ops.conv_pack_gdn_decode_inputs(**vars(a) | dict(conv_states=pool))
        assert all(torch.equal(x.flatten(), part) for x, part in zip(got, parts)) and torch.equal(pool, states)
        base = pool if pool._base is None else pool._base
        assert (base == 77).sum() == base.numel() - pool.numel()


def test_refusals(backend):
    a = vars(Case(B=3).inputs(backend.device))
    cases = [
        (
            dict(mixed_qkv=a["mixed_qkv"][:, :-1]),
            r"gdn.conv_pack_gdn_decode_inputs: mixed_qkv: expected shape \[any, 128\], got \[3, 127\]",
        ),
        (dict(mixed_qkv=a["mixed_qkv"].double()), "mixed_qkv: expected bf16 or fp16 or fp32"),
        (dict(HV=3), "HV: expected a multiple of H = 2 heads, got 3"),
        (dict(K=0), "K: expected a head size of 1 to 256, got 0"),
        (dict(z=a["z"][:, :2]), r"z: expected shape \[3, 4, 16\], got \[3, 2, 16\]"),
        (dict(z=a["z"].half()), "z: expected bf16 or fp32, got fp16"),
        (dict(a=a["a"][:2], b=a["b"].half()), r"a: expected shape \[3, 4\], got \[2, 4\]; b: expected bf16 or fp32, got fp16"),
        (dict(weight=a["weight"][:, :1]), "weight: expected width 2, 3 or 4, got 1"),
        (dict(conv_states=a["conv_states"][:, :, :2]), "conv_states: expected at least W - 1 columns"),
        (dict(cache_indices=a["cache_indices"][:2]), r"cache_indices: expected shape \[3\], got \[2\]"),
        (dict(activation=2), "activation: expected 0"),
        (dict(a=a["a"].clone().requires_grad_()), "a: expected no gradient"),
    ]
    before = a["conv_states"].clone()
    for change, text in cases:
        with pytest.raises(RuntimeError, match=text):
            gdn_ops.conv_pack_gdn_decode_inputs(**a | change)
    assert torch.equal(a["conv_states"], before)
