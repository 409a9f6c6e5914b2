from dataclasses import dataclass

import pytest
import torch
from harness import assert_close, guarded, seeded

import gdn_ops
from gdn_ops import NONE, SIGMOID, SILU, reference

RMS = {torch.float32: 2e-6, torch.bfloat16: 2.5e-3, torch.float16: 4e-4}  # rounding of the stored output


@dataclass(frozen=True)
class Case:
    shape: tuple = (5, 3, 128)
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
    Case((2, 9, 256), activation=SIGMOID, norm_before_gate=False),
    Case((2, 3, 5, 128), norm_before_gate=False, weight="fp32"),
    Case((7, 100), activation=SIGMOID),
    Case((3, 1), weight="fp32"),
    Case((2, 3, 2, 24), activation=NONE),
    Case((4, 384), group_size=128),
    Case((2, 3, 3, 192), group_size=64, norm_before_gate=False),
    Case((3, 90), group_size=30, weight="fp32"),
    Case((3, 700), gated=False),
    Case((128,), gated=False, weight="fp32"),
    Case((2, 2050)),
]


def check(x, weight, z, rms, **options):
    got = gdn_ops.gated_rmsnorm(x, weight, z, **options)
    assert got.dtype == x.dtype and got.is_contiguous()
    assert_close(got, reference.gated_rmsnorm(x, weight, z, **options), rms)
    assert torch.equal(got, gdn_ops.gated_rmsnorm(x, weight, z, **options))


@pytest.mark.parametrize("dtype", RMS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(backend, case, dtype):
    check(*case.inputs(dtype, backend.device), RMS[dtype], **case.options())


@pytest.mark.parametrize("start", [0, 8, 1])
@pytest.mark.parametrize("width", [128, 100])
def test_columns_of_wider_rows(backend, width, start):
    """[T, HV, D] views with row strides of their own; 8 elements are 16 bytes, 1 is none of the vector widths."""
    row = guarded(torch.randn(2, 3, 1024, generator=seeded(8)).to(torch.bfloat16), backend.device)
    x = row[..., start : start + 3 * width].unflatten(-1, (3, width))
    z = row[..., 512 + start :][..., : 3 * width].unflatten(-1, (3, width))
    weight = guarded(torch.randn(width, generator=seeded(9)), backend.device)
    check(x, weight, z, RMS[torch.bfloat16])
    check(x.transpose(0, 1), weight, z.transpose(0, 1), RMS[torch.bfloat16])
    check(x[:, :, :1].expand(2, 3, 3, width), weight, z, RMS[torch.bfloat16])


@pytest.mark.parametrize("H, r, width", [(3, 2, 128), (2, 3, 24), (1, 4, 64), (4, 1, 128)])
def test_gate_in_groups(backend, H, r, width):
    """z as an interleaved projection [q k v z] per key head holds it: the same bits as from a copy."""
    row = guarded(torch.randn(2, 5, H, 2 * r * width + 16, generator=seeded(21)).to(torch.bfloat16), backend.device)
    z = row[..., r * width + 16 :].unflatten(-1, (r, width))  # [2, 5, H, r, width]
    x = guarded(torch.randn(2, 5, H * r, width, generator=seeded(22)).to(torch.bfloat16), backend.device)
    weight = guarded(torch.randn(width, generator=seeded(23)), backend.device)
    want = gdn_ops.gated_rmsnorm(x, weight, z.reshape(x.shape))
    assert torch.equal(gdn_ops.gated_rmsnorm(x, weight, z), want)
    assert torch.equal(gdn_ops.gated_rmsnorm(x[0], weight, z[0]), want[0])
    got = gdn_ops.gated_rmsnorm(x.transpose(0, 1).contiguous(), weight, z.transpose(0, 1)) if r == 1 or H == 1 else want.transpose(0, 1)
    assert torch.equal(got, want.transpose(0, 1))


@pytest.mark.parametrize("width", [128, 100])
def test_epsilon_zero_rows_and_large_fp16(backend, width):
    w = torch.ones(width, device=backend.device)
    x = torch.zeros(3, width, device=backend.device)
    x[1], x[2] = 1e-3, 1e4
    for dtype in RMS:
        y = gdn_ops.gated_rmsnorm(x.to(dtype), w).float().cpu()
        assert y[:, 0].tolist() == [0, pytest.approx(0.5**0.5, rel=1e-2 if dtype == torch.bfloat16 else 1e-3), pytest.approx(1, rel=5e-3)]
    big = gdn_ops.gated_rmsnorm(x.half(), w * 1e5)
    assert big[2].tolist() == [65504] * width and (gdn_ops.gated_rmsnorm(x.half(), w * -1e5)[2] == -65504).all()


@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32], ids=str)
def test_roundings_of_transformers(backend, weight_dtype):
    """Bit for bit except where a different last bit of rsqrt or exp turns a rounding; without hf_rounding every fourth
    value or so differs."""
    qwen = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
    norm = qwen.Qwen3_5RMSNormGated(128).requires_grad_(False)
    norm.weight.copy_(torch.randn(128, generator=seeded(10)))
    norm = norm.to(weight_dtype)
    x, z = (torch.randn(40, 128, generator=seeded(11 + i)).bfloat16() for i in range(2))
    want = norm(x, z)
    args = (t.to(backend.device) for t in (x, norm.weight.detach(), z))
    args = tuple(args)
    same = (gdn_ops.gated_rmsnorm(*args, hf_rounding=True).cpu() == want).float().mean().item()
    plain = (gdn_ops.gated_rmsnorm(*args).cpu() == want).float().mean().item()
    assert same > 0.995 and plain < 0.9, (same, plain)


def test_nothing(backend):
    x = torch.zeros(0, 4, 128, dtype=torch.bfloat16, device=backend.device)
    assert gdn_ops.gated_rmsnorm(x, x.new_zeros(128), x).shape == x.shape


def test_refusals(backend):
    x = torch.zeros(4, 6, device=backend.device)
    w = torch.ones(6, device=backend.device)
    cases = [
        ((x, w[:5]), {}, r"gdn.gated_rmsnorm: weight: expected shape \[6\], got \[5\]"),
        ((x.half(), w.bfloat16()), {}, "weight: expected fp32 or fp16, got bf16"),
        ((x, w.new_ones(12)[::2]), {}, "weight: expected unit stride in the last dimension, got stride 2"),
        ((x, w, x[:3]), {}, r"z: expected the shape of x, \[4, 6\], got \[3, 6\]"),
        ((x, w, x.half()), {}, "z: expected fp32, got fp16"),
        ((x, w, x.new_zeros(6, 4).t()), {}, "z: expected unit stride"),
        ((x.t().contiguous().t(), w), {}, "x: expected unit stride"),
        ((x[None, None, None], w), {}, "x: expected 1 to 4 dimensions"),
        ((x[:, :0], w[:0]), {}, "x: expected a last dimension of at least 1"),
        ((x, w), dict(group_size=4), "group_size: expected 0 or a divisor of x's last size, got 4"),
        ((x, w), dict(activation=3), r"activation: expected 0 \(none\), 1 \(silu\) or 2 \(sigmoid\), got 3"),
        ((x, w, x.clone().requires_grad_()), {}, "z: expected no gradient"),
        ((x, w, x.view(4, 2, 3)), {}, "z: expected the shape of x with its second-last dimension in groups"),
        ((x.view(2, 2, 6), w, x.view(1, 4, 1, 6)), {}, "z: expected the shape of x with its second-last"),
        ((x.new_zeros(2, 2, 4, 6), w, x.new_zeros(2, 2, 2, 2, 6).permute(1, 0, 3, 2, 4)), {}, "z: expected leading dimensions that are three at most"),
        ((x, w), dict(out_scale=w), r"out_scale: expected one number, got \[6\]"),
        ((x, w), dict(out_scale=w[:1].double()), "out_scale: expected fp32, got another dtype"),
        ((x.double(), w), {}, "x: expected bf16 or fp16 or fp32, got another dtype"),
    ]  # fmt: skip
    for args, options, text in cases:
        with pytest.raises(RuntimeError, match=text):
            gdn_ops.gated_rmsnorm(*args, **options)


@pytest.mark.parametrize("norm_before_gate", [True, False])
@pytest.mark.parametrize("D", [128, 96])
@pytest.mark.parametrize("fp8", [False, True])
def test_rows_of_padding_are_zeros_whatever_the_gate_holds(backend, D, norm_before_gate, fp8):
    x = torch.randn(5, D, generator=seeded(1)).bfloat16()
    z = torch.randn(5, D, generator=seeded(2)).bfloat16()
    weight, scale = torch.ones(D), torch.ones(1) if fp8 else None
    x[1], x[3] = 0, 0
    args = [t if t is None else t.to(backend.device) for t in (x, weight, z, scale)]
    want = gdn_ops.gated_rmsnorm(*args[:3], norm_before_gate=norm_before_gate, out_scale=args[3]).float()
    args[2][1], args[2][3] = float("nan"), float("inf")
    got = gdn_ops.gated_rmsnorm(*args[:3], norm_before_gate=norm_before_gate, out_scale=args[3]).float()
    assert torch.equal(got, want) and not got[[1, 3]].any()
