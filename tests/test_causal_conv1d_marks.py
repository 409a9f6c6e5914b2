"""causal_conv1d_fn on its way: packed samples (seq_idx), checkpoints, results in given memory; and interleaved projections."""

from types import SimpleNamespace

import pytest
import torch
from harness import assert_close, guarded, seeded

import gdn_ops
from gdn_ops import SILU, reference

RMS = {torch.float32: 2e-6, torch.bfloat16: 2.5e-3, torch.float16: 4e-4}  # rounding of the stored output
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def normal(r, *shape, dtype=BF16):
    return torch.randn(*shape, generator=r).to(dtype)


# ---- packed samples --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("W, D, dtype, index, first", [(4, 64, BF16, torch.int32, True), (4, 12, FP16, torch.int64, False),
                                                       (3, 20, FP32, torch.int32, False), (2, 65, BF16, torch.int64, True)], ids=str)  # fmt: skip
def test_samples(backend, W, D, dtype, index, first):
    """Changes at and around the chunks' borders, samples of one token, padding in the middle and at the end."""
    r = seeded(1)
    lengths = [[16, 1, 1, 2, 12, 17, 30, 1, 3, 4], [15, 1, 2, 3, 11, 1, 31, 16, 7, 0], [87], [14, 33, 30, 10]]
    ids = [torch.repeat_interleave(torch.tensor([0, 1, 2, 3, 4, -1, 6, 7, 4, -2][: len(n)]), torch.tensor(n)) for n in lengths]
    x, weight, bias = (guarded(normal(r, *s, dtype=dtype), backend.device) for s in ((4, 87, D), (D, W), (D,)))
    seq_idx = guarded(torch.stack(ids).to(index), backend.device)
    x = x.mT if first else x
    want, _ = reference.causal_conv1d_fn(x, weight, bias, activation=SILU, seq_idx=seq_idx, channels_first=first)
    y = gdn_ops.causal_conv1d_fn(x, weight, bias, activation=SILU, seq_idx=seq_idx, channels_first=first)
    assert_close(y, want, RMS[dtype])
    rows = y.mT if first else y
    assert not rows[seq_idx < 0].any() and rows[seq_idx >= 0].any()
    one = gdn_ops.causal_conv1d_fn(x[2], weight, bias, activation=SILU, channels_first=first)  # one sample: as without
    alone = gdn_ops.causal_conv1d_fn(x[2], weight, bias, activation=SILU, seq_idx=seq_idx[2:3], channels_first=first)
    assert torch.equal(y[2], one) and torch.equal(alone, one)
    contiguous = gdn_ops.causal_conv1d_fn(x.contiguous(), weight, bias, activation=SILU, seq_idx=seq_idx, channels_first=first)
    assert torch.equal(contiguous, y)


def test_samples_are_packed_sequences(backend):
    r = seeded(2)
    x, weight = (normal(r, *s).to(backend.device) for s in ((70, 64), (64, 4)))
    ids = torch.repeat_interleave(torch.arange(4), torch.tensor([1, 20, 40, 9])).to(backend.device)
    ends = torch.tensor([0, 1, 21, 61, 70], device=backend.device)
    y = gdn_ops.causal_conv1d_fn(x, weight, activation=SILU, seq_idx=ids[None])
    assert torch.equal(y, gdn_ops.causal_conv1d_fn(x, weight, query_start_loc=ends, activation=SILU))


# ---- checkpoints -----------------------------------------------------------------------------------------------


def marked(device, lengths=(5, 70, 0, 3, 33, 1), D=20, W=4, every=4, dtype=BF16, index=torch.int32, state=None, kept=None, M=None):
    r, N = seeded(4), len(lengths)
    most = M or max(lengths) // every + 1
    a = dict(x=normal(r, sum(lengths) + 2, D, dtype=dtype), weight=normal(r, D, W, dtype=dtype), bias=normal(r, D, dtype=dtype))
    a |= dict(conv_states=normal(r, N + 2, D, W - 1, dtype=state or dtype), cache_indices=torch.randperm(N + 2, generator=r)[:N].to(index))
    a |= dict(
        query_start_loc=torch.tensor((0, *lengths)).cumsum(0).to(index), prefix_lens=torch.tensor([0, 6, 1, 8, 2**33 + 3, 3]).to(index)
    )
    a |= dict(checkpoints=torch.randn(N * most + 3, D, W - 1, generator=r).to(kept or dtype))
    a |= dict(checkpoint_indices=(torch.randperm(N * most, generator=r).view(N, most) + 3).to(index))
    a = {k: guarded(v, device) for k, v in a.items()}
    a |= dict(has_initial_state=torch.tensor([True, False, True, True, True, False][:N], device=device), checkpoint_every=every)
    if index == torch.int32:
        a["prefix_lens"][4] = 2**31 - 64
    return SimpleNamespace(**a)


def check(a, min_slot=0):
    names = ("conv_states", "checkpoints")
    before = {n: getattr(a, n).clone() for n in names}
    want = reference.causal_conv1d_fn(**vars(a), activation=SILU, min_slot=min_slot)
    y = gdn_ops.causal_conv1d_fn(**vars(a), activation=SILU, min_slot=min_slot)
    assert_close(y, want[0], RMS[a.x.dtype], what="y")
    for name, new in zip(names, want[1:]):
        assert torch.equal(getattr(a, name).cpu().double(), new), name
        getattr(a, name).copy_(before[name])
    plain = vars(a) | dict(checkpoints=None, checkpoint_every=0, checkpoint_indices=None, prefix_lens=None)
    assert torch.equal(y, gdn_ops.causal_conv1d_fn(**plain, activation=SILU, min_slot=min_slot))
    a.conv_states.copy_(before["conv_states"])
    return y


@pytest.mark.parametrize("case", [
    {}, dict(every=1, D=64), dict(every=16, D=64, index=torch.int64), dict(every=64, dtype=FP16), dict(every=7, W=2, dtype=FP32),
    dict(every=3, W=3, state=FP32, kept=FP32, M=2), dict(every=16, D=65, kept=FP32), dict(every=1000), dict(every=2**40),
], ids=str)  # fmt: skip
def test_checkpoints(backend, case):
    check(marked(backend.device, **case))
    check(marked(backend.device, **case), min_slot=4)


def test_checkpoints_are_what_a_shorter_prompt_leaves(backend):
    a = marked(backend.device, every=16, D=64)
    gdn_ops.causal_conv1d_fn(**vars(a), activation=SILU)
    start, prefix = a.query_start_loc[1].item(), 6
    for j, end in enumerate(range(16, prefix + 71, 16)):
        states = torch.zeros(1, 64, 3, dtype=BF16, device=backend.device)
        gdn_ops.causal_conv1d_fn(a.x[start : start + end - prefix], a.weight, a.bias, states, activation=SILU)
        assert torch.equal(a.checkpoints[a.checkpoint_indices[1, j].long()], states[0])


def test_checkpoints_into_the_pool(backend):
    """Channel-last, slots of the states' own pool; -1 and slots past the pool are skipped; no prefix; dense rows."""
    a = marked(backend.device, every=16, lengths=(40, 20), D=64)
    pool = torch.randn(9, 3, 64, generator=seeded(5)).to(BF16).to(backend.device).mT
    slots = lambda *x: torch.tensor(x, device=backend.device)  # noqa: E731
    args = dict(conv_states=pool, cache_indices=slots(7, 2), checkpoints=pool, checkpoint_indices=slots([3, -1, 4], [99, 5, 6]))
    want = reference.causal_conv1d_fn(**vars(a) | args | dict(prefix_lens=None), activation=SILU)
    y = gdn_ops.causal_conv1d_fn(**vars(a) | args | dict(prefix_lens=None), activation=SILU)
    assert_close(y, want[0], RMS[BF16])
    assert torch.equal(pool[[7, 2]].cpu().double(), want[1][[7, 2]]) and torch.equal(pool[3].cpu().double(), want[2][3])
    untouched = [0, 1, 4, 5, 6, 8]
    assert torch.equal(pool[untouched].cpu().double(), want[1][untouched])
    dense = dict(x=a.x[:60].view(2, 30, 64), query_start_loc=None, conv_states=None, cache_indices=None, has_initial_state=None)
    dense |= dict(checkpoint_indices=slots([3], [4]), checkpoints=torch.zeros(5, 64, 3, device=backend.device), prefix_lens=None)
    want = reference.causal_conv1d_fn(**vars(a) | dense)
    gdn_ops.causal_conv1d_fn(**vars(a) | dense)
    assert torch.equal(dense["checkpoints"].cpu().double(), want[2])


# ---- given memory ----------------------------------------------------------------------------------------------


def test_out(backend):
    """Beside x in its own rows, transposed, strided; never over x, which several threads read."""
    r = seeded(6)
    x, weight, ends = (
        normal(r, 70, 64).to(backend.device),
        normal(r, 64, 4).to(backend.device),
        torch.tensor([0, 40, 69], device=backend.device),
    )
    y = gdn_ops.causal_conv1d_fn(x, weight, query_start_loc=ends)
    wide = torch.full((70, 200), 77.0, dtype=BF16, device=backend.device)
    wide[:, :64] = x
    outs = [
        wide[:, 64:128],
        wide[:, 131:195],
        torch.full_like(y.mT, 77.0).mT,
        torch.full((140, 64), 77.0, device=backend.device, dtype=BF16)[::2],
    ]
    for out in outs:
        assert gdn_ops.causal_conv1d_fn(wide[:, :64], weight, query_start_loc=ends, out=out) is out and torch.equal(out, y)
    assert (wide == 77).sum() == 70 * (200 - 3 * 64)
    for out in (
        wide[:, :64],
        wide[:, 1:65],
        wide[:, 63:127],
        x.new_empty(0),
        x.new_empty(70, 64, dtype=FP32),
        wide[:1, 64:128].expand(70, 64),
    ):
        with pytest.raises(RuntimeError, match="gdn.causal_conv1d_fn: out: expected"):
            gdn_ops.causal_conv1d_fn(wide[:, :64], weight, query_start_loc=ends, out=out)
    state = torch.zeros(70, 64, 3, dtype=BF16, device=backend.device)
    with pytest.raises(RuntimeError, match="gdn.causal_conv1d_update: out: expected x itself, or memory apart from x"):
        gdn_ops.causal_conv1d_update(wide[:, :64], state, weight, out=wide[:, 32:96])


# ---- interleaved projections -----------------------------------------------------------------------------------


@pytest.mark.parametrize("H, K, V", [(4, 16, 32), (1, 8, 24), (3, 6, 10), (2, 5, 7)])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_interleaved_projection(backend, H, K, V, dtype):
    """Bit-equal to the channels gathered first; z and what lies beside the projection are not looked at."""
    r, D, columns = seeded(7), H * (2 * K + V), H * (2 * K + 2 * V)
    wide = torch.full((75, columns + 8), float("nan"), dtype=dtype)
    wide[:, 4 : 4 + columns] = normal(r, 75, columns, dtype=dtype)
    wide[:, 4 : 4 + columns].view(75, H, -1)[:, :, 2 * K + V :] = float("nan")
    x, weight, bias = wide.to(backend.device)[:, 4 : 4 + columns], normal(r, D, 4, dtype=dtype).to(backend.device), None
    pool, slots = normal(r, 4, D, 3, dtype=dtype).to(backend.device), torch.tensor([2, 0], device=backend.device)
    ends, has = torch.tensor([0, 33, 72], device=backend.device), torch.tensor([True, False], device=backend.device)
    flat, after = reference.flat_channels(x, H, K, D), pool.clone()
    want = gdn_ops.causal_conv1d_fn(flat, weight, bias, after, ends, slots, has, SILU)
    y = gdn_ops.causal_conv1d_fn(x, weight, bias, pool, ends, slots, has, SILU, H=H, K=K)
    assert y.shape == (75, D) and torch.equal(y, want) and torch.equal(pool, after)

    assert torch.equal(gdn_ops.causal_conv1d_fn(x.mT, weight, activation=SILU, channels_first=True, H=H, K=K).mT,
                       gdn_ops.causal_conv1d_fn(flat, weight, activation=SILU))  # fmt: skip
    want = gdn_ops.causal_conv1d_update(flat[:2], after, weight, bias, SILU, slots)
    assert torch.equal(gdn_ops.causal_conv1d_update(x[:2], pool, weight, bias, SILU, slots, H=H, K=K), want)
    drafts = dict(
        num_accepted_tokens=torch.tensor([1, 1], device=backend.device), query_start_loc=torch.tensor([0, 1, 2], device=backend.device)
    )
    want = gdn_ops.causal_conv1d_update(flat[:2], after, weight, bias, SILU, slots, **drafts)
    assert torch.equal(gdn_ops.causal_conv1d_update(x[:2], pool, weight, bias, SILU, slots, H=H, K=K, **drafts), want)
    assert torch.equal(pool, after)
