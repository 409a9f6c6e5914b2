from typing import NamedTuple

import pytest
import torch
from harness import assert_close, guarded, seeded

from gdn_ops import reference

OP = torch.ops.gdn.chunk_gated_delta_rule
# Rounding of bf16 (2^-9) and fp16 (2^-12) operands through a chain of four products: what published kernels show too.
RMS = {torch.bfloat16: 6e-3, torch.float16: 1.5e-3}
RAGGED = [0, 5, 64, 0, 1, 65, 63, 0]


class Device(NamedTuple):
    device: str


def inputs(backend, lens, H=2, HV=4, K=64, V=64, dtype=torch.bfloat16, seed=0, tail=0, gate=-0.1, gate_dtype=torch.float32):
    """Packed when ``lens`` is a list, dense [B, T] when it is a tuple; ``tail`` tokens belong to no sequence."""
    r, varlen = seeded(seed), isinstance(lens, list)
    B, T = (1, sum(lens) + tail) if varlen else lens
    N = len(lens) if varlen else B
    unit = torch.nn.functional.normalize
    q, k = (unit(torch.randn(B, T, H, K, generator=r), dim=-1).to(dtype) for _ in range(2))
    v = torch.randn(B, T, HV, V, generator=r).to(dtype)
    g = (gate * torch.rand(B, T, HV, generator=r)).to(gate_dtype)
    beta = torch.rand(B, T, HV, generator=r).to(gate_dtype)
    x = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "initial_state": torch.randn(N, HV, K, V, generator=r)}
    x = {name: guarded(t, backend.device) for name, t in x.items()}
    cu = torch.tensor([0, *lens]).cumsum(0).to(backend.device) if varlen else None
    return x, cu


@pytest.mark.gpu
def test_batch_invariance_across_tiles():
    """A batch wide enough for another state tile gives each sequence the bits it has alone."""
    lens = [3, 64, 130, 65] * 10
    x, cu = inputs(Device("cuda"), lens, 2, 4, 128, 128)
    o, ht = OP(**x, output_final_state=True, cu_seqlens=cu)
    for n in range(4):
        alone = {name: t[n : n + 1] if name == "initial_state" else t[:, cu[n] : cu[n + 1]] for name, t in x.items()}
        o_1, ht_1 = OP(**alone, output_final_state=True)
        assert torch.equal(o_1, o[:, cu[n] : cu[n + 1]]) and torch.equal(ht_1[0], ht[n])


def check(x, rms=None, **options):
    o, ht = OP(**x, output_final_state=True, **options)
    named = {("use_qk_l2norm" if n == "use_qk_l2norm_in_kernel" else n): t for n, t in options.items()}
    want_o, want_ht = reference.gated_delta_rule(**x, **named)
    rms = rms or RMS[x["q"].dtype]
    assert o.dtype == x["q"].dtype and ht.dtype == torch.float32
    assert_close(o, want_o, rms, what="o")
    assert_close(ht, want_ht, rms, what="final state")
    again = OP(**x, output_final_state=True, **options)
    assert torch.equal(o, again[0]) and torch.equal(ht, again[1])
    return o, ht


@pytest.mark.parametrize("T", [1, 63, 64, 65, 129])
def test_dense(backend, T):
    check(inputs(backend, (2, T))[0])


@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_ragged(backend, v_first, index_dtype):
    x, cu = inputs(backend, RAGGED, tail=70)
    if v_first:
        x["initial_state"] = x["initial_state"].transpose(-1, -2).contiguous()
    o, ht = check(x, cu_seqlens=cu.to(index_dtype), state_v_first=v_first, use_qk_l2norm_in_kernel=True)
    assert not o[:, cu[-1] :].any()
    for n, length in enumerate(RAGGED):  # alone or packed, the same bits
        alone = {name: t[n : n + 1] if name == "initial_state" else t[:, cu[n] : cu[n + 1]] for name, t in x.items()}
        o_1, ht_1 = OP(**alone, output_final_state=True, state_v_first=v_first, use_qk_l2norm_in_kernel=True)
        assert torch.equal(ht_1[0], ht[n]) and torch.equal(o_1, o[:, cu[n] : cu[n + 1]])
        if length == 0:
            assert torch.equal(ht[n], x["initial_state"][n])


@pytest.mark.parametrize("H, HV", [(1, 1), (2, 2), (1, 3), (2, 8)])
@pytest.mark.parametrize("dtype", RMS, ids=str)
def test_heads(backend, H, HV, dtype):
    check(inputs(backend, (1, 70), H, HV, dtype=dtype, gate_dtype=dtype)[0])


@pytest.mark.parametrize("K, V", [(128, 128), (64, 128), (48, 100), (128, 20), (160, 256), (1, 1)])
def test_head_sizes(backend, K, V):
    rms = 1e-2 if K == 1 else None  # a sum of one term averages no rounding
    check(inputs(backend, [70, 3], 1, 2, K, V)[0], rms, cu_seqlens=torch.tensor([0, 70, 73], device=backend.device))


@pytest.mark.parametrize("gate", [-1.0, -2.0, -8.0, -20.0])
def test_strong_decay_stays_finite(backend, gate):
    x, _ = inputs(backend, (1, 128))
    x["g"] = torch.full_like(x["g"], gate)
    check(x)


def test_long_keys_with_strong_decay(backend):
    """Only the gates keep the chunk's inverse finite: without them its entries reach 64^63."""
    x, _ = inputs(backend, (1, 128))
    x["k"] *= 8
    x["beta"] = torch.ones_like(x["beta"])
    x["g"] = torch.full_like(x["g"], -6.0)
    check(x)


def test_one_strong_gate(backend):
    x, _ = inputs(backend, (1, 128))
    x["g"] = torch.full_like(x["g"], -0.01)
    x["g"][:, 70] = -200.0
    check(x)


def test_identical_keys(backend):
    x, _ = inputs(backend, (1, 128))
    x["k"][:] = x["k"][:, :1]
    x["beta"] = torch.ones_like(x["beta"])
    x["g"] = torch.zeros_like(x["g"])
    check(x)


def test_defaults(backend):
    """No gate, no beta, no state: no decay, ones of [B, T, HV], zeros bit for bit."""
    x, cu = inputs(backend, [3, 66], 1, 2)
    bare = {n: x[n] for n in "qkv"}
    full = bare | {"g": torch.zeros_like(x["g"]), "beta": torch.ones_like(x["beta"]), "initial_state": torch.zeros_like(x["initial_state"])}
    for got, want in zip(check(bare, cu_seqlens=cu), check(full, cu_seqlens=cu), strict=True):
        assert torch.equal(got, want)
    o, ht = OP(**bare, cu_seqlens=cu)
    assert ht.shape == (0,) and torch.equal(o, OP(**full, cu_seqlens=cu)[0])


@pytest.mark.parametrize("offset", [0, 1, 4])
def test_strided(backend, offset):
    """q, k, v as column slices of one projection row."""
    H, HV, K = 2, 4, 64
    width = (2 * H + HV) * K
    row = guarded(torch.randn(1, 70, width + 12, generator=seeded(3)).bfloat16(), backend.device)[..., offset : offset + width]
    q, k, v = (t.unflatten(-1, (-1, K)) for t in row.split([H * K, H * K, HV * K], -1))
    x, _ = inputs(backend, (1, 70), H, HV, K)
    x |= {"q": q, "k": k, "v": v, "beta": x["beta"][:, :, :1].expand(-1, -1, HV)}
    check(x, use_qk_l2norm_in_kernel=True)


def test_state_dtypes(backend):
    for dtype in (torch.bfloat16, torch.float16):
        x, _ = inputs(backend, (1, 5))
        x["initial_state"] = x["initial_state"].to(dtype)
        check(x)


def test_split_calls_agree(backend):
    x, _ = inputs(backend, (1, 150), 1, 2)
    want_o, want_ht = check(x)
    for cut in (1, 63, 64, 65):
        first = {n: t if n == "initial_state" else t[:, :cut] for n, t in x.items()}
        o_1, h_1 = OP(**first, output_final_state=True)
        o_2, h_2 = OP(**{n: h_1 if n == "initial_state" else t[:, cut:] for n, t in x.items()}, output_final_state=True)
        assert_close(torch.cat([o_1, o_2], 1), want_o, 2 * RMS[torch.bfloat16])
        assert_close(h_2, want_ht, 2 * RMS[torch.bfloat16])


def test_later_sequences_do_not_matter(backend):
    x, cu = inputs(backend, [63, 65, 17])
    o, ht = OP(**x, output_final_state=True, cu_seqlens=cu)
    for name, t in x.items():
        if name != "initial_state":
            t[:, 63:] = 1e4 if name in "qk" else float("nan")
    o_2, ht_2 = OP(**x, output_final_state=True, cu_seqlens=cu)
    assert torch.equal(o[:, :63], o_2[:, :63]) and torch.equal(ht[0], ht_2[0])


@pytest.mark.parametrize("shape", [(0, 5), (2, 0)])
def test_empty(backend, shape):
    x, _ = inputs(backend, shape)
    o, ht = OP(**x, output_final_state=True)
    assert o.shape == (*shape, 4, 64) and torch.equal(ht, x["initial_state"])
    x, cu = inputs(backend, [])
    o, ht = OP(**x, output_final_state=True, cu_seqlens=cu)
    assert o.shape == (1, 0, 4, 64) and ht.shape == (0, 4, 64, 64)


def test_offsets_are_clamped(backend):
    x, _ = inputs(backend, (1, 80))
    o, ht = OP(**x, output_final_state=True, cu_seqlens=torch.tensor([0, 1000], device=backend.device))
    want = OP(**x, output_final_state=True)
    assert torch.equal(o, want[0]) and torch.equal(ht, want[1])


REFUSALS = {
    "v heads": (lambda x: x | {"v": x["v"][:, :, :3]}, "v: expected heads in a multiple of q's, got 3"),
    "k shape": (lambda x: x | {"k": x["k"][:, :4]}, "k: expected shape [1, 5, 2, 64], got [1, 4, 2, 64]"),
    "beta sized by q heads": (lambda x: x | {"beta": x["beta"][:, :, :2]}, "beta: expected shape [1, 5, 4], got [1, 5, 2]"),
    "rank": (lambda x: x | {"g": x["g"][0]}, "g: expected shape [1, 5, 4], got [5, 4]"),
    "dtype": (lambda x: x | {"v": x["v"].half()}, "v: expected bf16, got fp16"),
    "stride": (lambda x: x | {"q": x["q"].transpose(1, 3).contiguous().transpose(1, 3)}, "q: expected unit stride in the last dimension"),
    "head size": (lambda x: x | {"v": x["v"].repeat(1, 1, 1, 5)}, "v: expected a head size V of 1 to 256, got 320"),
    "state": (lambda x: x | {"initial_state": x["initial_state"].transpose(2, 3)}, "initial_state: expected contiguous slots (they are never copied), got strides"),
    "gradient": (lambda x: x | {"q": x["q"].detach().requires_grad_()}, "q: expected no gradient"),
    "batch": (lambda x: {n: t.expand(2, *t.shape[1:]) for n, t in x.items()} | {"cu_seqlens": torch.tensor([0, 3, 5])}, "cu_seqlens: expected B = 1 (packed tokens) with it, got B = 2"),
    "cu dtype": (lambda x: x | {"cu_seqlens": torch.tensor([0.0, 5.0])}, "cu_seqlens: expected int32 or int64, got fp32"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(backend, name):
    change, text = REFUSALS[name]
    x = change(inputs(backend, (1, 5))[0])
    x = {n: t.to(backend.device) for n, t in x.items()}
    with pytest.raises(RuntimeError) as error:
        OP(**x)
    assert "gdn.chunk_gated_delta_rule: " in str(error.value) or backend.name == "cpu"
    assert text in str(error.value)
