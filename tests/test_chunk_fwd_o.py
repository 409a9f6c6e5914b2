import pytest
import torch
from chunk_cases import RAGGED, Case
from harness import assert_close, guarded

import gdn_ops
from gdn_ops import reference

BF16, FP16 = torch.bfloat16, torch.float16
# The masked q k^T is rounded to the operands' dtype, and the result at the store: 2^-9 or 2^-12 each.
RMS = {BF16: 3e-3, FP16: 4e-4}

CASES = [
    Case("dense", T=66, B=2),
    Case("ragged-outside", lengths=RAGGED, before=3, after=70),
    Case("fp16", T=130, HV=1, dtype=FP16),
    Case("int32-gates-bf16", lengths=(5, 66), gates=BF16, index=torch.int32),
    Case("ratio-3", T=33, H=2, HV=6),
    Case("K128-V96", T=65, K=128, V=96),
    Case("K256-V256", T=65, HV=1, K=256, V=256),
    Case("odd-sizes", lengths=(17, 70), H=2, HV=2, K=60, V=100, dtype=FP16),
    Case("narrow", T=20, K=20, V=1),
    Case("chunk-16", HV=1, lengths=(0, 15, 16, 17, 33), C=16),
    Case("chunk-32", lengths=(31, 33, 1), C=32, dtype=FP16),
    Case("no-tokens", T=0),
    Case("no-sequences", lengths=(), after=65),
    Case("empty-sequences", lengths=(0, 0)),
]


def run(x, **options):
    return gdn_ops.chunk_fwd_o(x.q, x.k, x.v_new, x.h, x.G, cu_seqlens=x.cu_seqlens, **options)


def want(x, **options):
    return reference.chunk_fwd_o(x.q, x.k, x.v_new, x.h, x.G, cu_seqlens=x.cu_seqlens, **options)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(backend, case):
    x = case.inputs(backend.device)
    o = run(x, chunk_size=case.C)
    assert o.dtype == case.dtype and o.is_contiguous()
    assert_close(o, want(x, chunk_size=case.C), RMS[case.dtype])
    if case.lengths is not None:
        assert not o[:, case.outside()].any()
    if backend.name != "interpreter":
        assert torch.equal(o, run(x, chunk_size=case.C))


@pytest.mark.parametrize("K, V", [(64, 48), (128, 64), (48, 20)])
def test_state_order(backend, K, V):
    x = Case("", HV=1, lengths=(65, 0, 3), K=K, V=V).inputs(backend.device)
    o = run(x)
    x.h = guarded(x.h.transpose(-1, -2), backend.device)
    assert torch.equal(run(x, state_v_first=True), o)


def test_no_gate_scale_and_rows_of_h(backend):
    x = Case("", HV=1, lengths=(65, 3)).inputs(backend.device)
    x.G.zero_()
    o = gdn_ops.chunk_fwd_o(x.q, x.k, x.v_new, x.h, scale=0.5, cu_seqlens=x.cu_seqlens)
    assert torch.equal(o, run(x, scale=0.5))
    assert_close(o, want(x, scale=0.5), RMS[BF16])
    x.h = x.h[:, :3]  # exactly the chunks there are
    assert torch.equal(o, run(x, scale=0.5))


def test_gates_in_base_2(backend):
    x = Case("", T=70, HV=1).inputs(backend.device)
    o = run(x)
    x.G *= 1.4426950408889634
    assert_close(run(x, gate_base=2), o, 1e-3)


@pytest.mark.parametrize("raw", [-2.0, -20.0, "one -200", 0.5])
def test_strong_decay_and_growth(backend, raw):
    raw_g = torch.full((1, 128, 1), -0.01 if isinstance(raw, str) else raw)
    if isinstance(raw, str):
        raw_g[:, 70] = -200
    x = Case("", T=128, HV=1).inputs(backend.device, raw_g=raw_g)
    assert_close(run(x), want(x), RMS[BF16])


@pytest.mark.parametrize("lengths", [(1, 64), (63, 65), (17, 129, 3)], ids=str)
def test_neighbours_do_not_matter(backend, lengths):
    x = Case("", HV=1, lengths=lengths).inputs(backend.device)
    o = run(x)
    start = row = 0
    for length in lengths:
        end, rows = start + length, -(-length // 64)
        alone = gdn_ops.chunk_fwd_o(*(t[:, start:end] for t in (x.q, x.k, x.v_new)), x.h[:, row : row + rows], x.G[:, start:end])
        assert torch.equal(alone, o[:, start:end])
        start, row = end, row + rows
    for t in (x.q, x.k, x.v_new, x.G):
        t[:, lengths[0] :] = float("nan")
    x.h[:, -(-lengths[0] // 64) :] = float("nan")
    assert torch.equal(run(x)[:, : lengths[0]], o[:, : lengths[0]])


@pytest.mark.parametrize("start", [1, 8])
def test_slices_of_one_projection(backend, start):
    x = Case("", T=66, H=1, HV=2).inputs(backend.device)
    x.G = x.G.to(BF16)
    pad = torch.full((1, 66, start), float("nan"), dtype=BF16, device=backend.device)
    parts = guarded(torch.cat([pad, x.q.flatten(2), x.k.flatten(2), x.v_new.flatten(2), x.G, pad], 2), backend.device)
    _, q, k, v, g, _ = parts.split([start, 64, 64, 128, 2, start], 2)
    got = gdn_ops.chunk_fwd_o(q.unflatten(2, (1, 64)), k.unflatten(2, (1, 64)), v.unflatten(2, (2, 64)), x.h, g)
    assert_close(got, run(x), 1e-3)  # another variant may sum in another order


def test_strided_states_and_offsets(backend):
    x = Case("", HV=1, lengths=(30, 70), index=torch.int32).inputs(backend.device)
    o = run(x)
    x.h = x.h.repeat_interleave(2, 1)[:, ::2]
    x.cu_seqlens = torch.stack([x.cu_seqlens + 1, x.cu_seqlens], 1)[:, 1]
    assert torch.equal(run(x), o)


def test_fp16_saturates(backend):
    x = Case("", T=3, HV=1, dtype=FP16).inputs(backend.device)
    x.q, x.h = x.q * 100, x.h.fill_(6e4)
    o = run(x)
    assert o.isfinite().all() and o.abs().max() == 65504


def test_wrong_offsets_stay_inside(backend):
    x = Case("", T=50, HV=1).inputs(backend.device)
    x.cu_seqlens = torch.tensor([-7, 50, 0, 50, 0, 900], device=backend.device)
    assert run(x).isfinite().all()  # h has one row: what lies past it reads as zeros


REFUSED = [
    (dict(q=lambda x: x.q[0]), "q: expected shape [any, any, any, any], got [20, 1, 64]"),
    (dict(q=lambda x: x.q.float()), "q: expected bf16 or fp16, got fp32"),
    (dict(k=lambda x: x.k[..., :32]), "k: expected shape [1, 20, 1, 64], got [1, 20, 1, 32]"),
    (dict(v=lambda x: x.v.half()), "v: expected bf16, got fp16"),
    (dict(v=lambda x: x.v[..., ::2]), "v: expected unit stride in the last dimension, got stride 2"),
    (dict(h=lambda x: x.h.float()), "h: expected bf16, got fp32"),
    (dict(h=lambda x: x.h[:, :0]), "h: expected shape [1, 1, 2, 64, 64], got [1, 0, 2, 64, 64]"),
    (dict(g=lambda x: x.G[0]), "g: expected shape [1, 20, 2], got [20, 2]"),
    (dict(q=lambda x: x.q.expand(1, 20, 3, 64), k=lambda x: x.k.expand(1, 20, 3, 64)), "HV: expected a multiple of H = 3 heads, got 2"),
    (dict(v=lambda x: x.v.repeat(1, 1, 1, 5)), "V: expected a head size of 1 to 256, got 320"),
    (dict(chunk_size=lambda x: 48), "chunk_size: expected 16, 32 or 64, got 48"),
    (dict(chunk_size=lambda x: 0), "chunk_size: expected 16, 32 or 64, got 0"),
    (dict(cu_seqlens=lambda x: torch.tensor([0.0, 20])), "cu_seqlens: expected int32 or int64, got fp32"),
    (dict(gate_base=lambda x: 10.0), "gate_base: expected None (natural logarithms) or 2, got 10"),
]


@pytest.mark.parametrize("change, text", REFUSED, ids=[text for _, text in REFUSED])
def test_refusals(change, text):
    x = Case("", T=20).inputs()
    arguments = dict(q=x.q, k=x.k, v=x.v_new, h=x.h, g=x.G) | {name: make(x) for name, make in change.items()}
    with pytest.raises(RuntimeError) as e:
        gdn_ops.chunk_fwd_o(**arguments)
    assert "gdn.chunk_fwd_o: " in str(e.value) and text in str(e.value)
