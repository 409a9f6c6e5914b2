"""The step ops one after another are the recurrence: recompute_w_u, chunk_fwd_h, chunk_fwd_o against the token loop in
float64. The inverse comes from float64 too, so that what fails here is one of these three."""

import pytest
import torch
from chunk_cases import RAGGED, Case, solve
from harness import assert_close, seeded

import gdn_ops
from gdn_ops import reference

BF16, FP16 = torch.bfloat16, torch.float16
# Operands are rounded at A, w, u, h, v_new and the masked q k^T: six roundings of 2^-9 (bf16) or 2^-12 (fp16) on the way.
RMS = {BF16: 1e-2, FP16: 1.5e-3}

CASES = [
    Case("dense", T=130, B=2, HV=1),
    Case("ragged", lengths=RAGGED, V=32),
    Case("fp16-K128", T=70, K=128, V=32, HV=1, dtype=FP16),
    Case("bf16-gates", T=70, HV=1, gates=BF16, decay=1.0),
    Case("chunk-32-ratio-3", T=70, H=1, HV=3, C=32, V=16),
]


def chain(x, start=0, end=None, h0=None, cu_seqlens=None, C=64, v_first=False):
    q, k, v, g, beta = (t[:, start:end] for t in (x.q, x.k, x.v, x.g, x.beta))
    G, A = (t.float().to(k.device) for t in solve(k, beta, g, cu_seqlens, C))
    w, u = gdn_ops.recompute_w_u(k, v, beta, A, G, cu_seqlens)
    h, v_new, ht = gdn_ops.chunk_fwd_h(k, w, u, G, h0, True, C, cu_seqlens=cu_seqlens, state_v_first=v_first)
    return gdn_ops.chunk_fwd_o(q, k, v_new, h, G, cu_seqlens=cu_seqlens, chunk_size=C, state_v_first=v_first), ht


@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_recurrence(backend, case, v_first):
    x = case.inputs(backend.device)
    h0 = x.h0.transpose(-1, -2).contiguous() if v_first else x.h0
    o, ht = chain(x, 0, None, h0, x.cu_seqlens, case.C, v_first)
    want_o, want_ht = reference.gated_delta_rule(x.q, x.k, x.v, x.g, x.beta, None, h0, x.cu_seqlens, state_v_first=v_first)
    assert_close(o, want_o, RMS[case.dtype], what="o")
    assert_close(ht, want_ht, RMS[case.dtype], what="ht")


@pytest.mark.parametrize("H, HV", [(1, 1), (2, 2), (2, 4), (2, 6), (4, 32), (16, 48)])
def test_value_heads_share_key_heads(backend, H, HV):
    if backend.name == "interpreter" and HV > 6:
        pytest.skip("slow")
    x = Case("", T=20, H=H, HV=HV, K=16, V=16).inputs(backend.device)
    x.v[:] = torch.arange(1, HV + 1, device=backend.device)[:, None]  # a head's own constant
    o, ht = chain(x)
    want_o, want_ht = reference.gated_delta_rule(x.q, x.k, x.v, x.g, x.beta)
    for h in range(HV):
        assert_close(o[:, :, h], want_o[:, :, h], RMS[BF16], what=f"o of head {h}")
        assert_close(ht[:, h], want_ht[:, h], RMS[BF16], what=f"ht of head {h}")


@pytest.mark.parametrize("cut", [1, 2, 3, 63, 64, 65, 128, 199])
def test_two_calls_are_one(backend, cut):
    if backend.name == "interpreter" and cut not in (63, 64):
        pytest.skip("slow")
    T = 130 if backend.name == "interpreter" else 200
    x = Case("", T=T, HV=1).inputs(backend.device)
    o, ht = chain(x, h0=x.h0)
    o_1, state = chain(x, 0, cut, x.h0)
    o_2, ht_2 = chain(x, cut, None, state)
    want_o, want_ht = reference.gated_delta_rule(x.q, x.k, x.v, x.g, x.beta, initial_state=x.h0)
    for got, want in ((o, want_o), (torch.cat([o_1, o_2], 1), want_o), (ht, want_ht), (ht_2, want_ht)):
        assert_close(got, want, RMS[BF16])
    if cut % 64 == 0:  # the same chunks, and a state handed on in float32
        assert torch.equal(torch.cat([o_1, o_2], 1), o) and torch.equal(ht_2, ht)


def test_packed_sequences_are_sequences(backend):
    lengths = (5, 3, 1, 2, 64, 66)
    x = Case("", HV=1, lengths=lengths).inputs(backend.device)
    o, ht = chain(x, h0=x.h0, cu_seqlens=x.cu_seqlens)
    start = 0
    for n, length in enumerate(lengths):
        alone_o, alone_ht = chain(x, start, start + length, x.h0[n : n + 1])
        assert torch.equal(alone_o, o[:, start : start + length]) and torch.equal(alone_ht[0], ht[n])
        start += length


def test_identical_keys(backend):
    """All keys one vector and beta = 1: every token overwrites the one value, and the inverse is I minus a subdiagonal."""
    x = Case("", T=100, HV=1).inputs(backend.device)
    x.k[:] = torch.nn.functional.one_hot(torch.tensor(5), 64).to(BF16)
    x.v[:] = torch.randint(-8, 9, x.v.shape, generator=seeded(3)).to(BF16)  # so that differences are exact
    x.beta.fill_(1)
    x.g.zero_()
    _, ht = chain(x)
    assert torch.equal(ht[0, 0, 5], x.v[0, -1, 0].float()) and ht.count_nonzero() == x.v[0, -1, 0].count_nonzero()


def test_long_chain_does_not_drift(backend):
    if backend.name == "interpreter":
        pytest.skip("slow")
    x = Case("", T=2048, HV=1, K=32, V=32, decay=0.01).inputs(backend.device)
    h0 = torch.randn(1, 1, 32, 32, generator=seeded(2)).to(backend.device)
    o, ht = chain(x, h0=h0)
    want_o, want_ht = reference.gated_delta_rule(x.q, x.k, x.v, x.g, x.beta, initial_state=h0)
    assert_close(o, want_o, RMS[BF16])
    assert_close(ht, want_ht, RMS[BF16])
