from dataclasses import replace

import pytest
import torch
from harness import assert_close
from recurrent_cases import BF16, FP16, FP32, RMS, Case

import gdn_ops
from gdn_ops import reference

CASES = [
    Case("decode"),
    Case("decode-v-first", v_first=True),
    Case("decode-K128", K=128, H=2),
    Case("decode-K128-v-first", K=128, H=2, v_first=True),
    Case("bf16-state-v-first", K=128, state=BF16, v_first=True),
    Case("bf16-state", K=128, state=BF16),
    Case("fp16-state", state=FP16, dtype=FP16),
    Case("fp16-state-v-first", state=FP16, dtype=FP16, v_first=True),
    Case("fp32", T=3, dtype=FP32),
    Case("dense", T=5, scale=1.0),
    Case("no-norm", T=5, v_first=True, l2norm=False),
    Case("packed", lengths=(0, 1, 7, 0, 3, 0), before=2, after=5),
    Case("packed-v-first", lengths=(3, 0, 2), after=1, K=128, index=torch.int32, v_first=True),
    Case("packed-bf16-state", lengths=(2, 0, 3), state=BF16, gates=BF16, v_first=True),
    Case("packed-fp16", lengths=(2, 3), K=128, dtype=FP16, gates=FP16, state=BF16),
    Case("ratio-3", H=2, HV=6, T=2),
    Case("ratio-4", HV=4, T=2, v_first=True),
    Case("ratio-8", HV=8, V=16),
    Case("odd-sizes", H=2, T=3, K=60, V=20, dtype=FP16),
    Case("odd-sizes-v-first", T=3, K=100, V=13, state=BF16, v_first=True),
    Case("largest", HV=1, B=1, K=256, V=256, T=2),
    Case("largest-v-first", HV=1, B=1, K=200, V=256, v_first=True),
    Case("smallest", K=1, V=1, T=2, l2norm=False),
    Case("no-tokens", T=0),
    Case("no-rows", B=0),
    Case("no-sequences", lengths=(), after=3),
    Case("empty-sequences", lengths=(0, 0)),
]


def run(case, x, **changes):
    """o and the final state; ``changes`` replace inputs."""
    x = {**vars(x), **changes}
    return gdn_ops.fused_recurrent_gated_delta_rule(
        x["q"], x["k"], x["v"], x["g"], x["beta"], case.scale, x["h0"], True, x["cu_seqlens"], case.l2norm, case.v_first
    )


def expected(case, x, **changes):
    x = {**vars(x), **changes}
    return reference.gated_delta_rule(
        x["q"], x["k"], x["v"], x["g"], x["beta"], case.scale, x["h0"], x["cu_seqlens"], case.l2norm, case.v_first
    )


def equal(got, want):
    return all(torch.equal(g, w) for g, w in zip(got, want))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(backend, case):
    x = case.tokens(backend.device)
    o, ht = run(case, x)
    assert o.dtype == case.dtype and ht.dtype == FP32 and o.is_contiguous() and ht.is_contiguous()
    want_o, want_h = expected(case, x)
    assert_close(o, want_o, RMS[case.dtype], what="o")
    assert_close(ht, want_h, 1e-6, what="final state")
    if case.lengths is not None:
        assert not o[:, case.outside(backend.device)].any()
        empty = [n for n, length in enumerate(case.lengths) if length == 0]
        assert torch.equal(ht[empty], x.h0[empty].float())
    assert equal(run(case, x), (o, ht))


def test_optional_arguments(backend):
    case = Case("", T=3)
    x = case.tokens(backend.device)
    ones, zeros = torch.ones_like(x.beta), torch.zeros_like(x.beta)
    assert equal(run(case, x, beta=None), run(case, x, beta=ones))
    assert equal(run(case, x, g=None), run(case, x, g=zeros))
    assert equal(run(case, x, h0=None), run(case, x, h0=torch.zeros_like(x.h0)))
    o, none = gdn_ops.fused_recurrent_gated_delta_rule(x.q, x.k, x.v, initial_state=x.h0)
    assert none.shape == (0,) and none.dtype == FP32
    assert_close(o, reference.gated_delta_rule(x.q, x.k, x.v, initial_state=x.h0)[0], RMS[BF16], what="defaults")


@pytest.mark.parametrize("h0", [True, False])
def test_empty_sequence_keeps_its_state(backend, h0):
    case = Case("", lengths=(0, 3, 0, 4, 0), V=20, state=BF16)  # 20: the masked variant copies too
    x = case.tokens(backend.device)
    _, ht = run(case, x, **({} if h0 else {"h0": None}))
    assert torch.equal(ht[[0, 2, 4]], x.h0[[0, 2, 4]].float() if h0 else torch.zeros_like(ht[[0, 2, 4]]))


@pytest.mark.parametrize("H, HV", [(1, 1), (2, 2), (2, 6), (4, 32)])
def test_value_head_uses_its_key_head(backend, H, HV):
    case = Case("", H=H, HV=HV, B=1, K=64, V=16)
    x = case.tokens(backend.device)
    x.k.copy_(torch.eye(case.K, device=backend.device)[:H])  # key head h writes row h of the state
    _, ht = run(case, x, h0=None, g=None, beta=None)
    want = torch.zeros(HV, case.K, case.V, device=backend.device)
    for j in range(HV):
        want[j, j // (HV // H)] = x.v[0, 0, j].float()
    assert_close(ht[0], want, 1e-6)


@pytest.mark.parametrize("K, c, want", [(64, 3e-5, 0.0299865), (100, 1e-4, 0.0995037), (128, 1e-3, 0.7071068), (256, 1e-2, 0.9950372)])
def test_norm_epsilon_is_inside_the_root(backend, K, c, want):
    q = torch.zeros(2, 1, 1, K, device=backend.device)
    q[1, 0, 0, 3] = c  # row 0 stays zero
    v = torch.ones(2, 1, 1, 16, device=backend.device)
    o, ht = gdn_ops.fused_recurrent_gated_delta_rule(q, q, v, scale=1.0, output_final_state=True, use_qk_l2norm_in_kernel=True)
    assert not o[0].any() and not ht[0].any()
    assert ht[1, 0, 3].tolist() == pytest.approx([want] * 16, rel=2e-6)
    assert o[1].flatten().tolist() == pytest.approx([want**2] * 16, rel=4e-6)


def test_norm_of_large_fp16(backend):
    case = Case("", K=128, dtype=FP16)
    x = case.tokens(backend.device)
    x.q.fill_(1e4), x.k.fill_(1e4)
    o, ht = run(case, x)
    want_o, want_h = expected(case, x)
    assert_close(o, want_o, RMS[FP16], what="o")
    assert_close(ht, want_h, 1e-6, what="final state")


@pytest.mark.parametrize("cut", [1, 2, 8])
def test_one_call_is_several(backend, cut):
    case = Case("", T=9, B=1, K=128)
    x = case.tokens(backend.device)
    o, ht = run(case, x)
    parts = [slice(t, t + 1) for t in range(9)] if cut == 1 else [slice(0, cut), slice(cut, 9)]
    h, rows = x.h0, []
    for part in parts:
        row, h = run(case, x, **{i: getattr(x, i)[:, part] for i in ("q", "k", "v", "g", "beta")}, h0=h)
        rows.append(row)
    assert_close(torch.cat(rows, 1), o, RMS[BF16], what="o")
    assert_close(h, ht, 1e-6, what="final state")


def test_states_of_any_alignment(backend):
    case = Case("", K=128, T=2, v_first=True)
    x = case.tokens(backend.device)
    odd = torch.empty(x.h0.numel() + 1, device=backend.device)[1:].view_as(x.h0).copy_(x.h0)
    gap = torch.full((2, *x.h0.shape), float("nan"), device=backend.device).transpose(0, 1)[:, 1].copy_(x.h0)
    assert equal(run(case, x, h0=odd), run(case, x)) and equal(run(case, x, h0=gap), run(case, x))


def test_fp16_saturates(backend):
    q = torch.full((1, 1, 1, 64), 1.0, dtype=FP16, device=backend.device)
    h0 = torch.full((1, 1, 64, 16), 4e4, device=backend.device)
    h0[..., 1], h0[..., 2] = -4e4, float("nan")
    o, _ = gdn_ops.fused_recurrent_gated_delta_rule(q, q * 0, torch.zeros_like(q[..., :16]), scale=1.0, initial_state=h0)
    assert o.flatten()[:2].tolist() == [65504.0, -65504.0] and o.flatten()[2].isnan()


def test_long_sequence_stays_exact(native_backend):
    case = Case("", HV=1, B=1, K=128, V=16, T=512)
    x = case.tokens(native_backend.device)
    o, ht = run(case, x)
    want_o, want_h = expected(case, x)
    assert_close(ht, want_h, 5e-6, what="final state")
    assert_close(o, want_o, RMS[BF16], what="o")


def test_many_sequences(native_backend):
    """More programs than an axis of a grid but the first may have."""
    case = Case("", lengths=(1,) * 4200, HV=16, K=16, V=8)
    x = case.tokens(native_backend.device)
    o, ht = run(case, x)
    alone = {i: getattr(x, i)[:, 4199:] for i in ("q", "k", "v", "g", "beta")}
    cu = torch.tensor([0, 1], device=native_backend.device)
    assert equal(run(case, x, **alone, h0=x.h0[4199:], cu_seqlens=cu), (o[:, 4199:], ht[4199:]))


X = Case("", H=2, HV=4).tokens()
REFUSALS = [
    (dict(q=X.q[0]), r"q: expected shape \[any, any, any, any\], got \[1, 2, 64\]"),
    (dict(q=X.q.double(), k=X.k.double(), v=X.v.double()), "q: expected bf16 or fp16 or fp32, got another dtype"),
    (dict(k=X.k[:, :, :1]), r"k: expected shape \[2, 1, 2, 64\], got \[2, 1, 1, 64\]"),
    (dict(k=X.k.float()), "k: expected bf16, got fp32"),
    (dict(v=X.v[:, :, :3]), "v: expected heads in a multiple of q's, got 3"),
    (dict(v=X.v[:1]), r"v: expected shape \[2, 1, any, any\]"),
    (dict(q=X.q.transpose(-1, -2).contiguous().transpose(-1, -2)), "q: expected unit stride in the last dimension, got stride 2"),
    (dict(q=X.q.repeat(1, 1, 1, 5), k=X.k.repeat(1, 1, 1, 5)), "q: expected a head size K of 1 to 256, got 320"),
    (dict(v=X.v.repeat(1, 1, 1, 9)), "v: expected a head size V of 1 to 256, got 288"),
    (dict(q=X.q[..., :0], k=X.k[..., :0]), "q: expected a head size K of 1 to 256, got 0"),
    (dict(g=X.g[0]), r"g: expected shape \[2, 1, 4\], got \[1, 4\]"),
    (dict(g=X.g[:, :, :2]), r"g: expected shape \[2, 1, 4\], got \[2, 1, 2\]"),
    (dict(g=X.g.half()), "g: expected fp32 or bf16, got fp16"),
    (dict(beta=X.beta[:, :, :2]), r"beta: expected shape \[2, 1, 4\], got \[2, 1, 2\]"),
    (dict(h0=X.h0[:1]), r"initial_state: expected shape \[2, 4, 64, 32\], got \[1, 4, 64, 32\]"),
    (dict(h0=X.h0.transpose(-1, -2).contiguous().transpose(-1, -2)), "initial_state: expected contiguous slots"),
    (dict(h0=X.h0.double()), "initial_state: expected fp32 or bf16 or fp16"),
    (dict(cu_seqlens=torch.tensor([0, 2])), "cu_seqlens: expected B = 1 .*, got B = 2"),
    (dict(cu_seqlens=torch.tensor([0.0, 2.0])), "cu_seqlens: expected int32 or int64"),
    (dict(cu_seqlens=torch.tensor([], dtype=torch.int32)), r"cu_seqlens: expected N \+ 1 entries, got \[0\]"),
    (dict(v=X.v.clone().requires_grad_()), "v: expected no gradient"),
    (dict(k=X.k[:, :, :1], g=X.g[0]), r"k: expected .*; g: expected"),
]


@pytest.mark.parametrize("changes, message", REFUSALS, ids=lambda x: x[:40] if isinstance(x, str) else "")
def test_refusals(changes, message):
    case = Case("", H=2, HV=4)
    with pytest.raises(RuntimeError, match=r"gdn\.fused_recurrent_gated_delta_rule: .*" + message):
        run(case, case.tokens(), **changes)


def test_odd_head_ratio_is_refused():
    case = replace(Case(""), H=3, HV=4)
    with pytest.raises(RuntimeError, match="v: expected heads in a multiple of q's, got 4"):
        run(case, case.tokens())


@pytest.mark.gpu
def test_devices_do_not_mix():
    case = Case("")
    x = case.tokens("cuda")
    with pytest.raises(RuntimeError, match="g: expected cuda:0 like the tensors before it, got cpu"):
        run(case, x, g=x.g.cpu())
