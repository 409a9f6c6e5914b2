import pytest
import torch
from chunk_cases import RAGGED, Case
from harness import assert_close

import gdn_ops
from gdn_ops import reference

BF16, FP16 = torch.bfloat16, torch.float16
# Two roundings of 2^-9 (bf16) or 2^-12 (fp16): A times the scales before the product, the result at the store.
RMS = {BF16: 3e-3, FP16: 4e-4}

CASES = [
    Case("dense", T=66, B=2),
    Case("ragged", lengths=RAGGED),
    Case("ragged-int32-outside", lengths=(5, 0, 66), before=3, after=70, index=torch.int32),
    Case("fp16", T=65, dtype=FP16),
    Case("gates-bf16", T=65, gates=BF16),
    Case("ratio-3", T=33, H=2, HV=6),
    Case("ratio-4-K128-V256", T=64, HV=4, K=128, V=256),
    Case("odd-sizes", lengths=(17, 40), H=2, HV=2, K=60, V=100, dtype=FP16),
    Case("narrow", T=20, K=20, V=1),
    Case("chunk-16", lengths=(0, 15, 16, 17, 33), C=16),
    Case("chunk-32", lengths=(31, 32, 33, 1), C=32, dtype=FP16),
    Case("no-tokens", T=0),
    Case("no-sequences", lengths=(), after=65),
    Case("empty-sequences", lengths=(0, 0)),
]


def run(x, **options):
    return gdn_ops.recompute_w_u(x.k, x.v, x.beta, x.A, x.G, x.cu_seqlens, **options)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(backend, case):
    x = case.inputs(backend.device)
    w, u = run(x)
    assert w.dtype == u.dtype == case.dtype and w.is_contiguous() and u.is_contiguous()
    want_w, want_u = reference.recompute_w_u(x.k, x.v, x.beta, x.A, x.G, x.cu_seqlens)
    assert_close(w, want_w, RMS[case.dtype], what="w")
    assert_close(u, want_u, RMS[case.dtype], what="u")
    if case.lengths is not None:
        assert not w[:, case.outside()].any() and not u[:, case.outside()].any()
    if backend.name != "interpreter":
        again = run(x)
        assert torch.equal(w, again[0]) and torch.equal(u, again[1])


def test_no_gate_is_zero_gate(backend):
    x = Case("", T=70).inputs(backend.device)
    x.G.zero_()
    for got, want in zip(gdn_ops.recompute_w_u(x.k, x.v, x.beta, x.A), run(x)):
        assert torch.equal(got, want)


def test_gates_in_base_2(backend):
    x = Case("", T=70).inputs(backend.device)
    w, u = run(x)
    x.G *= 1.4426950408889634
    w_2, u_2 = run(x, gate_base=2)
    assert_close(w_2, w, 1e-3)  # an ulp of bf16 here and there
    assert torch.equal(u_2, u)


@pytest.mark.parametrize("raw", [-2.0, -20.0, "one -200"])
def test_strong_decay(backend, raw):
    raw_g = torch.full((1, 128, 2), -0.01 if isinstance(raw, str) else raw)
    if isinstance(raw, str):
        raw_g[:, 70] = -200
    x = Case("", T=128).inputs(backend.device, raw_g=raw_g)
    w, u = run(x)
    want_w, want_u = reference.recompute_w_u(x.k, x.v, x.beta, x.A, x.G)
    assert_close(w, want_w, RMS[BF16], what="w")
    assert_close(u, want_u, RMS[BF16], what="u")


REFUSED = [
    (dict(k=lambda x: x.k[0]), "k: expected shape [any, any, any, any], got [20, 1, 64]"),
    (dict(k=lambda x: x.k.float()), "k: expected bf16 or fp16, got fp32"),
    (dict(v=lambda x: x.v.half()), "v: expected bf16, got fp16"),
    (dict(v=lambda x: x.v[..., ::2]), "v: expected unit stride in the last dimension, got stride 2"),
    (dict(beta=lambda x: x.beta[0]), "beta: expected shape [1, 20, 2], got [20, 2]"),
    (dict(beta=lambda x: x.beta.double()), "beta: expected fp32 or bf16, got another dtype"),
    (dict(A=lambda x: x.A[..., :48]), "A: expected chunks of 16, 32 or 64 (its last dimension), got 48"),
    (dict(g=lambda x: x.G[:, :19]), "g: expected shape [1, 20, 2], got [1, 19, 2]"),
    (dict(k=lambda x: x.k.expand(1, 20, 3, 64)), "HV: expected a multiple of H = 3 heads, got 2"),
    (dict(k=lambda x: x.k.repeat(1, 1, 1, 5)), "K: expected a head size of 1 to 256, got 320"),
    (dict(cu=lambda x: torch.tensor([[0, 20]])), "cu_seqlens: expected shape [any], got [1, 2]"),
    (dict(cu=lambda x: torch.tensor([0.0, 20])), "cu_seqlens: expected int32 or int64, got fp32"),
    (dict(base=lambda x: 10.0), "gate_base: expected None (natural logarithms) or 2, got 10"),
]


@pytest.mark.parametrize("change, text", REFUSED, ids=[text for _, text in REFUSED])
def test_refusals(change, text):
    x = Case("", T=20).inputs()
    a = dict(k=x.k, v=x.v, beta=x.beta, A=x.A, g=x.G, cu=None, base=None)
    a.update({name: make(x) for name, make in change.items()})
    with pytest.raises(RuntimeError) as e:
        gdn_ops.recompute_w_u(a["k"], a["v"], a["beta"], a["A"], a["g"], a["cu"], a["base"])
    assert "gdn.recompute_w_u: " in str(e.value) and text in str(e.value)


def test_refusals_together():
    x = Case("", T=20, B=2).inputs()
    with pytest.raises(RuntimeError, match="k: expected no gradient.*A: expected chunks.*cu_seqlens: expected B = 1"):
        gdn_ops.recompute_w_u(x.k.requires_grad_(), x.v, x.beta, x.A[..., :8], x.G, torch.tensor([0, 20]))
