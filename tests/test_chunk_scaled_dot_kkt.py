import pytest
import torch
from chunk_cases import RAGGED, Case
from harness import assert_close

import gdn_ops
from gdn_ops import reference

BF16, FP16 = torch.bfloat16, torch.float16
RMS = 2e-6  # fp32 sums of 256 exact products, exp of differences of a few

CASES = [
    Case("dense", T=66, B=2),
    Case("ragged", HV=1, lengths=RAGGED),
    Case("ragged-int32-outside", lengths=(5, 0, 66), before=3, after=70, index=torch.int32),
    Case("fp16", T=65, dtype=FP16),
    Case("gates-bf16", T=65, gates=BF16),
    Case("gates-fp16", T=20, dtype=FP16, gates=FP16),
    Case("ratio-1", T=33, H=2, HV=2),
    Case("ratio-3", T=33, H=2, HV=6),
    Case("ratio-4-K128", T=64, HV=4, K=128),
    Case("K256", T=30, K=256),
    Case("odd-size", lengths=(17, 40), H=2, HV=2, K=60, dtype=FP16),
    Case("one-column", T=20, K=1),
    Case("chunk-16", lengths=(0, 15, 16, 17, 33, 70), before=2, after=3, C=16),
    Case("chunk-32", lengths=(31, 32, 33, 1, 70), C=32, dtype=FP16),
    Case("no-tokens", T=0),
    Case("no-sequences", lengths=(), after=65),
    Case("empty-sequences", lengths=(0, 0)),
]


def run(x, C=64, **options):
    return gdn_ops.chunk_scaled_dot_kkt(x.k, x.G, x.beta, x.cu_seqlens, C, **options)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(backend, case):
    x = case.inputs(backend.device)
    A = run(x, case.C)
    assert A.dtype == torch.float32 and A.is_contiguous()
    assert_close(A, reference.chunk_scaled_dot_kkt(x.k, x.G, x.beta, x.cu_seqlens, case.C), RMS)
    if case.lengths is not None:
        assert not A[:, case.outside()].any()
    assert backend.name == "interpreter" or torch.equal(A, run(x, case.C))


def test_no_gate_and_no_beta(backend):
    x = Case("", T=70).inputs(backend.device)
    zeros, ones = torch.zeros_like(x.G), torch.ones_like(x.beta)
    full = gdn_ops.chunk_scaled_dot_kkt(x.k, zeros, ones)
    assert torch.equal(gdn_ops.chunk_scaled_dot_kkt(x.k, beta=ones), full)
    assert torch.equal(gdn_ops.chunk_scaled_dot_kkt(x.k, zeros), full)
    assert torch.equal(gdn_ops.chunk_scaled_dot_kkt(x.k), full[:, :, :1])


def test_gates_in_base_2(backend):
    x = Case("", T=70).inputs(backend.device)
    A = run(x)
    x.G *= 1.4426950408889634
    assert_close(run(x, gate_base=2), A, RMS)


@pytest.mark.parametrize("raw", [-1.0, -2.0, -8.0, -20.0, "one -200"])
def test_strong_decay(backend, raw):
    raw_g = torch.full((1, 128, 1), -0.01 if isinstance(raw, str) else raw)
    if isinstance(raw, str):
        raw_g[:, 70] = -200
    x = Case("", T=128, HV=1).inputs(backend.device, raw_g=raw_g)
    A = run(x)
    assert_close(A, reference.chunk_scaled_dot_kkt(x.k, x.G, x.beta), RMS + x.G.abs().max().item() * 2**-23)


REFUSED = [
    (lambda x: dict(k=x.k[0]), "k: expected shape [any, any, any, any], got [20, 1, 64]"),
    (lambda x: dict(k=x.k.float()), "k: expected bf16 or fp16, got fp32"),
    (lambda x: dict(k=x.k[..., ::2]), "k: expected unit stride in the last dimension, got stride 2"),
    (lambda x: dict(k=x.k.repeat(1, 1, 1, 5)), "K: expected a head size of 1 to 256, got 320"),
    (lambda x: dict(k=x.k.expand(1, 20, 3, 64)), "HV: expected a multiple of H = 3 heads, got 2"),
    (lambda x: dict(beta=x.beta[0]), "beta: expected shape [1, 20, 0], got [20, 2]"),
    (lambda x: dict(beta=x.beta.double()), "beta: expected fp32 or bf16, got another dtype"),
    (lambda x: dict(g=x.G.half()), "g: expected fp32 or bf16, got fp16"),
    (lambda x: dict(g=x.G[:, :19]), "g: expected shape [1, 20, 2], got [1, 19, 2]"),
    (lambda x: dict(g=x.G.repeat(1, 1, 2)), "g: expected shape [1, 20, 2], got [1, 20, 4]"),
    (lambda x: dict(chunk_size=128), "chunk_size: expected 16, 32 or 64, got 128"),
    (lambda x: dict(cu_seqlens=torch.tensor([[0, 20]])), "cu_seqlens: expected shape [any], got [1, 2]"),
    (lambda x: dict(gate_base=10), "gate_base: expected None (natural logarithms) or 2, got 10"),
]


@pytest.mark.parametrize("change, text", REFUSED, ids=[text for _, text in REFUSED])
def test_refusals(change, text):
    x = Case("", T=20).inputs()
    with pytest.raises(RuntimeError) as e:
        gdn_ops.chunk_scaled_dot_kkt(**{**dict(k=x.k, g=x.G, beta=x.beta), **change(x)})
    assert "gdn.chunk_scaled_dot_kkt: " in str(e.value) and text in str(e.value)


def test_refusals_together():
    x = Case("", T=20, B=2).inputs()
    with pytest.raises(RuntimeError, match="k: expected no gradient.*chunk_size: expected 16.*cu_seqlens: expected B = 1"):
        gdn_ops.chunk_scaled_dot_kkt(x.k.requires_grad_(), x.G, x.beta, torch.tensor([0, 20]), 48)
