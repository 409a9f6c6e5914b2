"""Prefill on a pool in place: slots, checkpoints, prompts that are cut."""

import pytest
import torch
from fresh import same
from harness import assert_close, guarded, seeded

import gdn_ops
from gdn_ops import reference

OP = torch.ops.gdn.chunk_gated_delta_rule_update
RMS = 6e-3  # as test_chunk_gated_delta_rule.py
STATE = {torch.float32: RMS, torch.bfloat16: RMS, torch.float16: RMS}
RAGGED = [5, 64, 0, 1, 130]
SLOTS = [6, 1, 4, -1, 2]


def inputs(backend, lens, H=1, HV=2, K=64, V=64, dtype=torch.bfloat16, seed=0, tail=0):
    """Packed when ``lens`` is a list, dense [B, T] when it is a tuple; ``tail`` tokens belong to no sequence."""
    r, varlen = seeded(seed), isinstance(lens, list)
    B, T = (1, sum(lens) + tail) if varlen else lens
    x = {name: torch.randn(B, T, h, n, generator=r).to(dtype) for name, h, n in (("q", H, K), ("k", H, K), ("v", HV, V))}
    x |= {"g": -0.1 * torch.rand(B, T, HV, generator=r), "beta": torch.rand(B, T, HV, generator=r)}
    x = {name: guarded(t, backend.device) for name, t in x.items()}
    if varlen:
        x["cu_seqlens"] = torch.tensor([0, *lens], device=backend.device).cumsum(0).int()
    return x | {"use_qk_l2norm_in_kernel": True}


def make_pool(backend, slots=8, HV=2, S0=64, S1=64, dtype=torch.float32, gap=1, seed=9):
    """Slots with a gap between them that must stay as it is."""
    return torch.randn(slots, 1 + gap, HV, S0, S1, generator=seeded(seed)).to(dtype).to(backend.device)[:, 0]


def ints(backend, values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype, device=backend.device)


def check(x, pool, indices, rms=RMS, **options):
    """Against float64, twice with the same bits; returns what the call left."""
    args = {"ssm_pool": pool, "ssm_indices": indices} | options
    want_o, want_pool, want_kept = reference.chunk_gated_delta_rule_update(**x, **args)
    results = []
    for _ in range(2):
        base = pool._base.clone()
        mine = args | {"ssm_pool": base.as_strided(pool.shape, pool.stride(), pool.storage_offset())}
        if options.get("checkpoints") is not None:
            mine["checkpoints"] = options["checkpoints"].clone()
        o = OP(**x, **mine)
        results.append((o, mine["ssm_pool"], mine.get("checkpoints")))
        assert torch.equal(base[:, 1:], pool._base[:, 1:]), "between the slots"
    (o, got, kept), again = results
    assert all(a is None or same(a, b) for a, b in zip(results[0], again))
    assert_close(o, want_o, rms, what="o")
    assert_close(got, want_pool, rms, what="pool")
    if kept is not None:
        assert_close(kept, want_kept, rms, what="checkpoints")
    return o, got, kept


@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize("state", STATE, ids=str)
def test_ragged(backend, v_first, state):
    x, pool = inputs(backend, RAGGED, tail=3), make_pool(backend, dtype=state)
    pool[4] = float("nan")  # of an empty sequence: not looked at
    pool[2] = float("nan")  # of a new request
    has = torch.tensor([True, True, False, True, False], device=backend.device)
    o, got, _ = check(x, pool, ints(backend, SLOTS), has_initial_state=has, state_v_first=v_first)
    for slot in (0, 3, 4, 5, 7):
        assert same(got[slot], pool[slot]), "an untouched slot"
    assert not o[:, 69].any() and not o[:, 200:].any()  # padding; tokens of no sequence


@pytest.mark.parametrize("K, V, dtype", [(64, 64, torch.bfloat16), (128, 128, torch.float16), (48, 100, torch.bfloat16)], ids=str)
def test_is_gather_op_scatter(backend, K, V, dtype):
    """Bit for bit the functional op between a gather and a scatter."""
    x, slots = inputs(backend, [70, 3, 64], K=K, V=V, dtype=dtype), ints(backend, [3, 0, 7], torch.int64)
    pool = make_pool(backend, S0=K, S1=V)
    want_o, want = gdn_ops.chunk_gated_delta_rule(
        x["q"], x["k"], x["v"], x["g"], x["beta"], None, pool[slots], True, x["cu_seqlens"], use_qk_l2norm_in_kernel=True
    )
    o = OP(**x, ssm_pool=pool, ssm_indices=slots)
    assert torch.equal(o, want_o) and torch.equal(pool[slots], want)


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("K, V", [(64, 64), (48, 100)])
@pytest.mark.parametrize("every", [64, 128])
def test_checkpoints(backend, K, V, every, state):
    """At absolute multiples, of prompts that began 0, 40, 64, 100 and 191 tokens before."""
    lens = [130, 24, 64, 29, 70]
    x, pool = inputs(backend, lens, K=K, V=V), make_pool(backend, S0=K, S1=V)
    kept = make_pool(backend, 16, 2, K, V, state, seed=1).contiguous()
    columns = ints(backend, [[0, 1, 2], [3, -1, 4], [5, 6, 7], [8, 9, 10], [11, 99, 12]])
    options = dict(checkpoints=kept, checkpoint_every=every, checkpoint_indices=columns, prefix_lens=ints(backend, [0, 40, 64, 100, 191]))
    _, _, got = check(x, pool, ints(backend, [0, 1, 2, 3, 4]), **options)
    changed = [i for i in range(16) if not torch.equal(got[i], kept[i])]
    assert changed == ([0, 1, 3, 5, 8, 11] if every == 64 else [0, 5, 8, 11])


def test_more_multiples_than_columns(backend):
    x, pool, kept = inputs(backend, [200]), make_pool(backend), make_pool(backend, 4).contiguous()
    _, _, got = check(x, pool, ints(backend, [2]), checkpoints=kept, checkpoint_indices=ints(backend, [[3]]))
    assert [i for i in range(4) if not torch.equal(got[i], kept[i])] == [3]


def test_a_checkpoint_is_the_state_of_a_shorter_prompt(backend):
    """A prompt continued from a checkpoint, bit for bit."""
    x, pool, kept = inputs(backend, (1, 150)), make_pool(backend), make_pool(backend, 4)
    slots, zero = ints(backend, [2]), ints(backend, [0])
    whole = OP(**x, ssm_pool=pool, ssm_indices=slots, checkpoints=kept, checkpoint_every=128, checkpoint_indices=ints(backend, [[1]]),
               prefix_lens=zero)  # fmt: skip
    rest = {n: t[:, 128:] if isinstance(t, torch.Tensor) else t for n, t in x.items()}
    o = OP(**rest, ssm_pool=kept, ssm_indices=ints(backend, [1]), prefix_lens=ints(backend, [128]))
    assert torch.equal(o, whole[:, 128:]) and torch.equal(kept[1], pool[2])


@pytest.mark.parametrize("cut", [1, 30, 64, 100])
def test_a_prompt_cut_anywhere(backend, cut):
    """Two calls with a state in between agree with one; at a multiple of 64 to the bit."""
    x, whole, pool = inputs(backend, (1, 130)), make_pool(backend), make_pool(backend)
    slots = ints(backend, [5])
    want = OP(**x, ssm_pool=whole, ssm_indices=slots)
    pieces = [{n: t[:, a:b] if isinstance(t, torch.Tensor) else t for n, t in x.items()} for a, b in ((0, cut), (cut, 130))]
    got = [OP(**p, ssm_pool=pool, ssm_indices=slots, prefix_lens=ints(backend, [n])) for p, n in zip(pieces, (0, cut))]
    assert_close(torch.cat(got, 1), want.double(), RMS)
    assert_close(pool, whole.double(), RMS)
    if cut == 64:
        assert torch.equal(torch.cat(got, 1), want) and torch.equal(pool, whole)


def test_reads_only(backend):
    """Slots may repeat, nothing is stored but checkpoints."""
    x, pool = inputs(backend, [3, 70, 64]), make_pool(backend)
    before = pool.clone()
    o, got, _ = check(x, pool, ints(backend, [4, 4, 4]), write_state=False)
    assert torch.equal(got, before) and o.any()


def test_checkpoints_into_the_pool(backend):
    x, pool = inputs(backend, (2, 128)), make_pool(backend)
    separate, kept = make_pool(backend), make_pool(backend, 8)
    args = dict(checkpoint_every=64, checkpoint_indices=ints(backend, [[2, 3], [4, -1]]))
    slots = ints(backend, [0, 1])
    OP(**x, ssm_pool=separate, ssm_indices=slots, checkpoints=kept, **args)
    OP(**x, ssm_pool=pool, ssm_indices=slots, checkpoints=pool, **args)
    assert torch.equal(pool[:2], separate[:2]) and torch.equal(pool[2:5], kept[2:5])


@pytest.mark.parametrize("min_slot", [0, 1])
def test_padding(backend, min_slot):
    """All rows padded, slots past the pool, none at all."""
    x, pool = inputs(backend, [3, 64, 2]), make_pool(backend)
    for bad in ([-1, -1, -1], [8, 2**31 - 1, -5], [min_slot - 1] * 3):
        before = pool.clone()
        o = OP(**x, ssm_pool=pool, ssm_indices=ints(backend, bad), min_slot=min_slot)
        assert not o.any() and torch.equal(pool, before)
    nothing = inputs(backend, [], tail=0)
    assert OP(**nothing, ssm_pool=pool, ssm_indices=ints(backend, [])).shape == (1, 0, 2, 64)
    assert torch.equal(pool, before)


def test_batch_invariance(backend):
    x, slots = inputs(backend, RAGGED), ints(backend, [0, 1, 2, 3, 4])
    together = make_pool(backend)
    prefix = ints(backend, [7, 64, 3, 100, 30])
    o = OP(**x, ssm_pool=together, ssm_indices=slots, prefix_lens=prefix)
    cu = x.pop("cu_seqlens").tolist()
    for n, (begin, end) in enumerate(zip(cu, cu[1:])):
        alone, pool = {k: t[:, begin:end] if isinstance(t, torch.Tensor) else t for k, t in x.items()}, make_pool(backend)
        got = OP(**alone, ssm_pool=pool, ssm_indices=slots[n : n + 1], prefix_lens=prefix[n : n + 1])
        assert torch.equal(got, o[:, begin:end]) and torch.equal(pool[n], together[n])


def test_refusals():
    device = type("Device", (), {"device": "cpu"})
    x, pool = inputs(device, (2, 3)), make_pool(device)
    cases = {
        "ssm_pool: expected": dict(ssm_pool=pool.transpose(-1, -2)),
        r"ssm_indices: expected shape \[2\]": dict(ssm_indices=ints(device, [0, 1, 2])),
        "ssm_indices: expected int32 or int64": dict(ssm_indices=torch.zeros(2)),
        r"has_initial_state: expected shape \[2\]": dict(has_initial_state=torch.ones(3, dtype=torch.bool)),
        "has_initial_state: expected bool": dict(has_initial_state=torch.ones(2)),
        "checkpoint_every: expected a multiple of 64, got 100": dict(
            checkpoints=pool, checkpoint_indices=ints(device, [[0], [1]]), checkpoint_every=100
        ),
        "checkpoint_indices: expected": dict(checkpoints=pool),
        "checkpoints: expected a tensor with checkpoint_indices": dict(checkpoint_indices=ints(device, [[0], [1]])),
        r"prefix_lens: expected shape \[2\]": dict(prefix_lens=ints(device, [0])),
        "g: expected": dict(g=x["g"][:, :2]),
    }
    for text, wrong in cases.items():
        before = pool.clone()
        with pytest.raises(RuntimeError, match=f"gdn.chunk_gated_delta_rule_update: (.*; )?{text}"):
            OP(**x | dict(ssm_pool=pool, ssm_indices=ints(device, [0, 1])) | wrong)
        assert torch.equal(pool, before)
