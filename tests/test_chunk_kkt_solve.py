import pytest
import torch
from chunk_cases import RAGGED, Case
from harness import assert_close, guarded, seeded

import gdn_ops
from gdn_ops import reference

BF16, FP16 = torch.bfloat16, torch.float16
RMS = {BF16: 2.5e-3, FP16: 1e-3}  # the rounding of the stored output; for fp16 that of the tf32 products

CASES = [
    Case("dense", T=66, B=2),
    Case("ragged", HV=1, lengths=RAGGED),
    Case("ragged-int32-outside", lengths=(5, 0, 66), before=3, after=70, index=torch.int32),
    Case("fp16", T=65, dtype=FP16),
    Case("gates-bf16", T=65, gates=BF16),
    Case("ratio-3", T=33, H=2, HV=6),
    Case("ratio-4-K128", T=64, HV=4, K=128),
    Case("odd-size", lengths=(17, 40), H=2, HV=2, K=60, dtype=FP16),
    Case("no-tokens", T=0),
    Case("no-sequences", lengths=(), after=65),
    Case("empty-sequences", lengths=(0, 0)),
]


def run(x, **options):
    return gdn_ops.chunk_kkt_solve(x.k, x.G, x.beta, x.cu_seqlens, **options)


def keys(rows, values, backend, dtype=BF16):
    """[1, rows, 1, 32]: row i points along the first axis with length values[i % len]."""
    k = torch.zeros(1, rows, 1, 32)
    k[0, :, 0, 0] = torch.tensor(values).repeat(rows)[:rows]
    return guarded(k.to(dtype), backend.device)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(backend, case):
    x = case.inputs(backend.device)
    Ai = run(x)
    assert Ai.dtype == case.dtype and Ai.is_contiguous()
    assert_close(Ai, reference.chunk_kkt_solve(x.k, x.G, x.beta, x.cu_seqlens), RMS[case.dtype])
    if case.lengths is not None:
        assert not Ai[:, case.outside()].any()
    assert backend.name == "interpreter" or torch.equal(Ai, run(x))


def test_is_kkt_then_solve(backend):
    x = Case("", T=100, dtype=FP16).inputs(backend.device)
    steps = gdn_ops.solve_tril(gdn_ops.chunk_scaled_dot_kkt(x.k, x.G, x.beta), output_dtype=FP16)
    assert_close(run(x), steps, RMS[FP16])


@pytest.mark.parametrize("rows", [64, 1, 15, 17, 63])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_equal_keys_invert_exactly(backend, rows, sign):
    """Equal unit keys, or of alternating sign, with beta = 1: I minus, or plus, the first subdiagonal."""
    want = torch.zeros(rows, 64, dtype=BF16)
    t = torch.arange(rows)
    want[t, t] = 1
    want[t[1:], t[:-1]] = -sign
    assert torch.equal(gdn_ops.chunk_kkt_solve(keys(rows, [1.0, sign], backend))[0, :, 0].cpu(), want)


@pytest.mark.parametrize("beta", [0.5, 0.9, 1.9])
@pytest.mark.parametrize("spread", [0, 0.1, 0.5])
def test_similar_keys(backend, beta, spread):
    """A run of one repeated token, more or less: a power series would need terms of 1e15 and more."""
    gen = seeded(3)
    k = reference.l2norm(1 + spread * torch.randn(1, 64, 1, 32, generator=gen)).to(FP16)
    k, beta = guarded(k, backend.device), torch.full((1, 64, 1), beta, device=backend.device)
    want = reference.chunk_kkt_solve(k, None, beta)
    # beta > 1: entries of 1.9 do not decay with distance, and a merge sums up 32 of them that cancel
    assert_close(gdn_ops.chunk_kkt_solve(k, beta=beta), want, 1.5e-3 if beta.max() < 1 else 1e-2)


@pytest.mark.parametrize("raw", [-1.0, -2.0, -8.0, -20.0, "one -200"])
def test_strong_decay(backend, raw):
    raw_g = torch.full((1, 128, 1), -0.01 if isinstance(raw, str) else raw)
    if isinstance(raw, str):
        raw_g[:, 70] = -200
    x = Case("", T=128, HV=1).inputs(backend.device, raw_g=raw_g)
    assert_close(run(x), reference.chunk_kkt_solve(x.k, x.G, x.beta), RMS[BF16])


def test_long_keys_with_strong_decay(backend):
    """Only the gates keep the inverse finite: without them its entries reach 64^63."""
    g = (-6.0 * (1 + torch.arange(64.0))).view(1, 64, 1).to(backend.device)
    k = keys(64, [8.0, 4.0], backend)
    assert_close(gdn_ops.chunk_kkt_solve(k, g), reference.chunk_kkt_solve(k, g), RMS[BF16])


def test_fp16_saturates(backend):
    Ai = gdn_ops.chunk_kkt_solve(keys(2, [512.0], backend, FP16))
    assert Ai[0, 1, 0, 0].item() == -65504


def test_gates_in_base_2(backend):
    x = Case("", T=70).inputs(backend.device)
    Ai = run(x)
    x.G *= 1.4426950408889634
    assert_close(run(x, gate_base=2), Ai, 1e-3)  # an ulp of bf16 here and there


def test_no_gate_and_no_beta(backend):
    x = Case("", T=70).inputs(backend.device)
    full = gdn_ops.chunk_kkt_solve(x.k, torch.zeros_like(x.G), torch.ones_like(x.beta))
    assert torch.equal(gdn_ops.chunk_kkt_solve(x.k), full[:, :, :1])


REFUSED = [
    (lambda x: dict(k=x.k.float()), "k: expected bf16 or fp16, got fp32"),
    (lambda x: dict(k=x.k.repeat(1, 1, 1, 5)), "K: expected a head size of 1 to 256, got 320"),
    (lambda x: dict(k=x.k.expand(1, 20, 3, 64)), "HV: expected a multiple of H = 3 heads, got 2"),
    (lambda x: dict(beta=x.beta.double()), "beta: expected fp32 or bf16, got another dtype"),
    (lambda x: dict(g=x.G[:, :19]), "g: expected shape [1, 20, 2], got [1, 19, 2]"),
    (lambda x: dict(chunk_size=32), "chunk_size: expected 64, got 32"),
    (lambda x: dict(cu_seqlens=torch.tensor([0.0, 20])), "cu_seqlens: expected int32 or int64, got fp32"),
    (lambda x: dict(gate_base=10), "gate_base: expected None (natural logarithms) or 2, got 10"),
]


@pytest.mark.parametrize("change, text", REFUSED, ids=[text for _, text in REFUSED])
def test_refusals(change, text):
    x = Case("", T=20).inputs()
    with pytest.raises(RuntimeError) as e:
        gdn_ops.chunk_kkt_solve(**{**dict(k=x.k, g=x.G, beta=x.beta), **change(x)})
    assert "gdn.chunk_kkt_solve: " in str(e.value) and text in str(e.value)
