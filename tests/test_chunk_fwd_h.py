import pytest
import torch
from chunk_cases import RAGGED, Case
from harness import assert_close, guarded, seeded

import gdn_ops
from gdn_ops import reference

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# Each chunk rounds its start state and its scaled v_new to the operands' dtype, 2^-9 or 2^-12, once each.
RMS = {BF16: 4e-3, FP16: 6e-4}

CASES = [
    Case("dense", T=66, B=2),
    Case("ragged-outside", V=32, lengths=RAGGED, before=3, after=70),
    Case("fp16", T=130, HV=1, dtype=FP16),
    Case("int32-gates-bf16", lengths=(5, 66), gates=BF16, index=torch.int32),
    Case("ratio-3", T=33, H=2, HV=6),
    Case("K128-V96", T=65, K=128, V=96),
    Case("K256-V256", T=65, HV=1, K=256, V=256),
    Case("odd-sizes", lengths=(17, 70), H=2, HV=2, K=60, V=100, dtype=FP16),
    Case("narrow", T=20, K=20, V=1),
    Case("chunk-16", HV=1, lengths=(0, 15, 16, 17, 33), V=16, C=16),
    Case("chunk-32", HV=1, lengths=(31, 33, 1), V=32, C=32, dtype=FP16),
    Case("no-tokens", T=0),
    Case("no-sequences", lengths=(), after=65),
    Case("empty-sequences", lengths=(0, 0)),
]


def run(x, h0=None, final=True, **options):
    return gdn_ops.chunk_fwd_h(x.k, x.w, x.u, x.G, h0, final, cu_seqlens=x.cu_seqlens, **options)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(backend, case):
    x = case.inputs(backend.device)
    h, v_new, ht = run(x, x.h0, chunk_size=case.C)
    assert (h.dtype, v_new.dtype, ht.dtype) == (case.dtype, case.dtype, FP32)
    want = reference.chunk_fwd_h(x.k, x.w, x.u, x.G, x.h0, True, case.C, True, x.cu_seqlens)
    for got, expected, what in zip((h, v_new, ht), want, ("h", "v_new", "ht")):
        assert_close(got, expected, RMS[case.dtype], what=what)
    if case.lengths is not None:
        assert not v_new[:, case.outside()].any()
        assert not h[:, sum(-(-n // case.C) for n in case.lengths) :].any()
    if backend.name != "interpreter":
        for got, again in zip((h, v_new, ht), run(x, x.h0, chunk_size=case.C)):
            assert torch.equal(got, again)


@pytest.mark.parametrize("dtype, K, V", [(FP32, 64, 48), (BF16, 128, 32), (FP16, 48, 20)], ids=str)
def test_state_dtypes_and_orders(backend, dtype, K, V):
    x = Case("", HV=1, lengths=(65, 0, 3), K=K, V=V).inputs(backend.device)
    pool = guarded(x.h0.to(dtype).repeat_interleave(2, 0), backend.device)[::2]  # a gap after every slot
    h, v_new, ht = run(x, pool)
    want = run(x, pool.float().contiguous())
    assert torch.equal(h, want[0]) and torch.equal(v_new, want[1]) and torch.equal(ht, want[2])
    assert torch.equal(ht[1], pool[1].float())  # an empty sequence
    h_v, v_new_v, ht_v = run(x, guarded(pool.transpose(-1, -2), backend.device), state_v_first=True)
    assert torch.equal(h_v.transpose(-1, -2), h) and torch.equal(v_new_v, v_new) and torch.equal(ht_v.transpose(-1, -2), ht)


def test_nothing_given_nothing_wanted(backend):
    x = Case("", T=70, HV=1).inputs(backend.device)
    x.G.zero_()
    h, v_new, ht = run(x, torch.zeros_like(x.h0))
    bare = gdn_ops.chunk_fwd_h(x.k, x.w, x.u, save_new_value=False)
    assert torch.equal(bare[0], h) and bare[1].shape == bare[2].shape == (0,) and (bare[1].dtype, bare[2].dtype) == (BF16, FP32)


def test_gates_in_base_2(backend):
    x = Case("", T=70, HV=1).inputs(backend.device)
    want = run(x, x.h0)
    x.G *= 1.4426950408889634
    for got, expected in zip(run(x, x.h0, gate_base=2), want):
        assert_close(got, expected, 1e-3)


@pytest.mark.parametrize("raw", [-2.0, -20.0, "one -200"])
def test_strong_decay(backend, raw):
    raw_g = torch.full((1, 128, 1), -0.01 if isinstance(raw, str) else raw)
    if isinstance(raw, str):
        raw_g[:, 70] = -200
    x = Case("", T=128, HV=1).inputs(backend.device, raw_g=raw_g)
    for got, want in zip(run(x, x.h0), reference.chunk_fwd_h(x.k, x.w, x.u, x.G, x.h0, True)):
        assert_close(got, want, RMS[BF16])


@pytest.mark.parametrize("cu", [[0, 0, 5, 5, 70, 70], [0, 0]], ids=str)
def test_empty_sequences_keep_their_state(backend, cu):
    x = Case("", T=cu[-1], HV=1).inputs(backend.device)
    x.cu_seqlens = torch.tensor(cu, device=backend.device)
    h0 = guarded(torch.randn(len(cu) - 1, 1, 64, 64), backend.device)
    h, _, ht = run(x, h0)
    assert h.shape[1] == -(-cu[-1] // 64) + len(cu) - 1
    for n in range(len(cu) - 1):
        assert (cu[n] != cu[n + 1]) != torch.equal(ht[n], h0[n])
    assert not run(x)[2][0].any()


@pytest.mark.parametrize("lengths", [(1, 64), (63, 65), (17, 129, 3)], ids=str)
def test_neighbours_do_not_matter(backend, lengths):
    x = Case("", HV=1, lengths=lengths).inputs(backend.device)
    h, v_new, ht = run(x, x.h0)
    start = row = 0
    for n, length in enumerate(lengths):
        end, rows = start + length, -(-length // 64)
        alone = gdn_ops.chunk_fwd_h(*(t[:, start:end] for t in (x.k, x.w, x.u, x.G)), x.h0[n : n + 1], True)
        assert torch.equal(alone[0], h[:, row : row + rows]) and torch.equal(alone[1], v_new[:, start:end])
        assert torch.equal(alone[2][0], ht[n])
        start, row = end, row + rows
    for t in (x.k, x.w, x.u, x.G):
        t[:, lengths[0] :] = float("nan")
    x.h0[1:] = float("nan")
    h_nan, v_nan, ht_nan = run(x, x.h0)
    rows = -(-lengths[0] // 64)
    assert torch.equal(h_nan[:, :rows], h[:, :rows]) and torch.equal(v_nan[:, : lengths[0]], v_new[:, : lengths[0]])
    assert torch.equal(ht_nan[0], ht[0])


def test_rows_are_states_at_chunk_boundaries(backend):
    x = Case("", HV=1, lengths=(130, 200)).inputs(backend.device)
    h, _, _ = run(x, x.h0)
    for n, start, row, ends in ((0, 0, 0, (64, 128)), (1, 130, 3, (64, 128, 192))):
        for end in ends:
            _, _, ht = gdn_ops.chunk_fwd_h(*(t[:, start : start + end] for t in (x.k, x.w, x.u, x.G)), x.h0[n : n + 1], True)
            assert torch.equal(h[0, row + end // 64], ht[0].to(BF16))


def test_many_sequences(backend):
    """N * HV = 65,600 programs."""
    if backend.name == "interpreter":
        pytest.skip("too many programs")
    N, L, HV, gen = 2050, 16, 32, seeded(1)
    k, w, u = (torch.randn(1, N * L, heads, 16, generator=gen).to(BF16).to(backend.device) for heads in (16, HV, HV))
    g, h0 = -torch.rand(1, N * L, HV, generator=gen).to(backend.device), torch.randn(N, HV, 16, 16, generator=gen).to(backend.device)
    h, v_new, ht = gdn_ops.chunk_fwd_h(k, w, u, g, h0, True, cu_seqlens=torch.arange(0, N * L + 1, L, device=backend.device))
    for n in (0, 1, 1000, 2047, 2049):
        part = slice(n * L, (n + 1) * L)
        alone = gdn_ops.chunk_fwd_h(*(t[:, part] for t in (k, w, u, g)), h0[n : n + 1], True)
        assert torch.equal(h[:, n], alone[0][:, 0]) and torch.equal(v_new[:, part], alone[1]) and torch.equal(ht[n], alone[2][0])


@pytest.mark.parametrize("start", [1, 8])
def test_slices_of_one_projection(backend, start):
    x = Case("", T=66, H=1, HV=2).inputs(backend.device)
    x.G = x.G.to(BF16)
    pad = torch.full((1, 66, start), float("nan"), dtype=BF16, device=backend.device)
    parts = guarded(torch.cat([pad, x.k.flatten(2), x.w.flatten(2), x.u.flatten(2), x.G, pad], 2), backend.device)
    _, k, w, u, g, _ = parts.split([start, 64, 128, 128, 2, start], 2)
    got = gdn_ops.chunk_fwd_h(k.unflatten(2, (1, 64)), w.unflatten(2, (2, 64)), u.unflatten(2, (2, 64)), g, x.h0, True)
    for a, b in zip(got, run(x, x.h0)):
        assert_close(a, b, 1e-3)  # another variant may sum in another order


def test_fp16_saturates(backend):
    x = Case("", T=3, HV=1, dtype=FP16).inputs(backend.device)
    h, v_new, ht = run(x, x.h0.fill_(1e6))
    assert h.max() == 65504 and h.isfinite().all() and v_new.isfinite().all() and ht.isfinite().all()


def test_wrong_offsets_stay_inside(backend):
    x = Case("", T=50, HV=1).inputs(backend.device)
    x.cu_seqlens = torch.tensor([-7, 50, 0, 50, 0, 900], device=backend.device)
    h, v_new, _ = run(x, None)
    assert h.shape[1] == 6 and h.isfinite().all() and v_new.isfinite().all()


REFUSED = [
    (dict(k=lambda x: x.k[0]), "k: expected shape [any, any, any, any], got [20, 1, 64]"),
    (dict(k=lambda x: x.k.float()), "k: expected bf16 or fp16, got fp32"),
    (dict(w=lambda x: x.w[..., :32]), "w: expected shape [1, 20, 2, 64], got [1, 20, 2, 32]"),
    (dict(u=lambda x: x.u.half()), "u: expected bf16, got fp16"),
    (dict(u=lambda x: x.u[..., ::2]), "u: expected unit stride in the last dimension, got stride 2"),
    (dict(g=lambda x: x.G[0]), "g: expected shape [1, 20, 2], got [20, 2]"),
    (dict(initial_state=lambda x: x.h0[:, :, :32]), "initial_state: expected shape [1, 2, 64, 64], got [1, 2, 32, 64]"),
    (dict(initial_state=lambda x: x.h0.double()), "initial_state: expected fp32 or bf16 or fp16, got another dtype"),
    (dict(k=lambda x: x.k.expand(1, 20, 3, 64)), "HV: expected a multiple of H = 3 heads, got 2"),
    (dict(u=lambda x: x.u.repeat(1, 1, 1, 5)), "V: expected a head size of 1 to 256, got 320"),
    (dict(chunk_size=lambda x: 48), "chunk_size: expected 16, 32 or 64, got 48"),
    (dict(cu_seqlens=lambda x: torch.tensor([0.0, 20])), "cu_seqlens: expected int32 or int64, got fp32"),
    (dict(gate_base=lambda x: 10.0), "gate_base: expected None (natural logarithms) or 2, got 10"),
]


@pytest.mark.parametrize("change, text", REFUSED, ids=[text for _, text in REFUSED])
def test_refusals(change, text):
    x = Case("", T=20).inputs()
    arguments = dict(k=x.k, w=x.w, u=x.u, g=x.G) | {name: make(x) for name, make in change.items()}
    with pytest.raises(RuntimeError) as e:
        gdn_ops.chunk_fwd_h(**arguments)
    assert "gdn.chunk_fwd_h: " in str(e.value) and text in str(e.value)
