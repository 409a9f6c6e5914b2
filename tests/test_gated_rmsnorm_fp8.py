"""The gated norm with fp8 results: gated_rmsnorm with out_scale, and gated_rmsnorm_fp8."""

from dataclasses import dataclass

import pytest
import torch
from harness import assert_close, guarded, seeded

import gdn_ops
from gdn_ops import NONE, SIGMOID, SILU, reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
FP8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Case:
    shape: tuple = (5, 3, 128)
    quant_group: int = 0
    weight: str = "x"  # dtype: as x, or fp32
    gated: bool = True
    activation: int = SILU
    norm_before_gate: bool = True
    group_size: int = 0

    def inputs(self, dtype, device):
        r = seeded(7)
        x, z = (guarded((torch.randn(self.shape, generator=r) * 3).to(dtype), device) for _ in "xz")
        weight = torch.randn(self.shape[-1], generator=r).to(dtype if self.weight == "x" else torch.float32)
        return x, guarded(weight, device), z if self.gated else None

    def options(self):
        return dict(activation=self.activation, norm_before_gate=self.norm_before_gate, group_size=self.group_size)


CASES = [
    Case(),
    Case((33, 64), weight="fp32"),
    Case((2, 9, 256), 128, activation=SIGMOID, norm_before_gate=False),
    Case((2, 3, 5, 128), 32, norm_before_gate=False, weight="fp32"),
    Case((4, 384), 128, group_size=128),
    Case((3, 512), 64, group_size=256, weight="fp32"),
    Case((7, 100), 20, activation=SIGMOID),
    Case((70, 8), 8, gated=False),
    Case((3, 1), weight="fp32"),
    Case((2, 3, 2, 24), activation=NONE),
    Case((3, 90), 15, group_size=30, weight="fp32"),
    Case((3, 90), group_size=45),
    Case((3, 700), 350, gated=False),
    Case((128,), gated=False, weight="fp32"),
    Case((2, 2048), 128),
]


def check_bytes(y, want):
    """``y`` is ``want`` rounded to nearest: equal bytes, but for sums that fall on the other side of a tie."""
    assert y.dtype == FP8 and y.is_contiguous() and y.shape == want.shape
    rounded = want.float().to(FP8)
    same = (y.cpu().view(torch.uint8) == rounded.cpu().view(torch.uint8)) | (y.cpu().float() == rounded.cpu().float())
    assert same.float().mean() >= 0.995
    off = (y.double().cpu() - want.cpu()).abs()
    assert (off <= want.abs().cpu() / 15.9 + 2**-9).all(), "half a step, 2^-4 of the number, or 2^-10 below 2^-6"


def same(a, b):
    return all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_scales_of_groups(backend, case, dtype):
    args, options = case.inputs(dtype, backend.device), case.options() | dict(quant_group=case.quant_group)
    y, scales = gdn_ops.gated_rmsnorm_fp8(*args, **options)
    want, want_scales = reference.gated_rmsnorm_fp8(*args, **options)
    assert scales.is_contiguous() and scales.dtype == torch.float32
    assert_close(scales, want_scales, 2e-6)
    check_bytes(y, want)
    assert same((y, scales), gdn_ops.gated_rmsnorm_fp8(*args, **options))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_scale(backend, case, dtype):
    args, options = case.inputs(dtype, backend.device), case.options()
    for scale in (0.05, 1.0, 1e-3):
        scale = torch.tensor([scale], device=backend.device)
        y = gdn_ops.gated_rmsnorm(*args, **options, out_scale=scale)
        check_bytes(y, reference.gated_rmsnorm(*args, **options, out_scale=scale))
        assert same([y], [gdn_ops.gated_rmsnorm(*args, **options, out_scale=scale[0])])


@pytest.mark.parametrize("width", [128, 100])
def test_saturates_and_keeps_nan(backend, width):
    x = torch.ones(3, width, device=backend.device)
    x[1], x[2, 0] = 0, float("nan")
    w = torch.linspace(-3, 3, width, device=backend.device)
    y = gdn_ops.gated_rmsnorm(x, w, out_scale=torch.tensor([1e-3], device=backend.device)).float()
    assert y[0, 0] == -448 and y[0, -1] == 448 and not y[1].any() and y[2].isnan().all()
    y, scales = gdn_ops.gated_rmsnorm_fp8(x[:2], w)
    assert y.float().abs().max() == 448 and scales[:, 0].tolist() == pytest.approx([3 / 448, 1e-10 / 448])
    assert not y[1].float().any()


@pytest.mark.parametrize("start", [0, 8, 1])
@pytest.mark.parametrize("width", [128, 24])
def test_slices_and_gates_in_groups(backend, width, start):
    """x and z from wider rows, z by key head; the bits do not depend on where they lie."""
    H, r = 2, 3
    row = guarded(torch.randn(4, H, 2 * r * width + 16, generator=seeded(8)).to(torch.bfloat16), backend.device)
    z = row[..., start : start + r * width].unflatten(-1, (r, width))  # [4, H, r, width]
    x = row.flatten(1)[:, start : start + H * r * width].unflatten(-1, (H * r, width))
    w = guarded(torch.randn(width, generator=seeded(9)), backend.device)
    options = dict(quant_group=8)
    got = gdn_ops.gated_rmsnorm_fp8(x, w, z, **options)
    check_bytes(got[0], reference.gated_rmsnorm_fp8(x, w, z, **options)[0])
    packed = gdn_ops.gated_rmsnorm_fp8(x.contiguous(), w, z.contiguous(), **options)
    (alone, scale) = gdn_ops.gated_rmsnorm_fp8(x[3:], w, z[3:], **options)
    assert same((alone, scale), (got[0][3:], got[1][3:]))
    assert_close(got[1], packed[1], 2e-6)


@pytest.mark.parametrize("width", [128, 100])
def test_roundings_of_unfused_modules(backend, width):
    """hf_rounding: the bytes of the norm in x's dtype, then quantised."""
    x, z = (guarded(torch.randn(40, width, generator=seeded(11 + i)).bfloat16(), backend.device) for i in range(2))
    w = guarded(torch.randn(width, generator=seeded(10)).bfloat16(), backend.device)
    scale = torch.tensor([0.013], device=backend.device)
    norm = gdn_ops.gated_rmsnorm(x, w, z, hf_rounding=True).float()
    y = gdn_ops.gated_rmsnorm(x, w, z, hf_rounding=True, out_scale=scale)
    equal = lambda y, want: (y.float() == want.clamp(-448, 448).to(FP8).float()).float().mean().item()  # noqa: E731
    assert equal(y, norm / scale) > 0.998
    y, scales = gdn_ops.gated_rmsnorm_fp8(x, w, z, hf_rounding=True)
    assert equal(y, norm / scales) > 0.998 and torch.equal(
        scales[:, 0].cpu(), norm.abs().amax(1).cpu() / 448
    )  # on CUDA torch multiplies by 1 / 448


def test_nothing(backend):
    x = torch.zeros(0, 4, 128, dtype=torch.bfloat16, device=backend.device)
    y, scales = gdn_ops.gated_rmsnorm_fp8(x, x.new_zeros(128), x, quant_group=64)
    assert y.shape == x.shape and scales.shape == (0, 4, 2)
    assert gdn_ops.gated_rmsnorm(x, x.new_zeros(128), x, out_scale=scales.new_ones(1)).shape == x.shape


def test_refusals(backend):
    x, w = torch.zeros(4, 6, device=backend.device), torch.ones(6, device=backend.device)
    cases = [
        ((x, w), dict(quant_group=4), r"gdn.gated_rmsnorm_fp8: quant_group: expected 0 or a divisor of the columns that"),
        ((x, w), dict(group_size=3, quant_group=6), "quant_group: expected .* got 6"),
        ((x, w[:5]), {}, r"weight: expected shape \[6\], got \[5\]"),
        ((x, w, x.half()), {}, "z: expected fp32, got fp16"),
        ((x.clone().requires_grad_(), w), {}, "x: expected no gradient"),
    ]
    for args, options, text in cases:
        with pytest.raises(RuntimeError, match=text):
            gdn_ops.gated_rmsnorm_fp8(*args, **options)
