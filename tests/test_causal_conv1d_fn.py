from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from harness import assert_close, guarded, seeded

import gdn_ops
from gdn_ops import NONE, SILU, reference

RMS = {torch.float32: 2e-6, torch.bfloat16: 2.5e-3, torch.float16: 4e-4}  # rounding of the stored output
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@dataclass(frozen=True)
class Case:
    """Packed ``lengths`` with ``before`` and ``after`` tokens of no sequence around them, or B rows of T tokens."""

    lengths: tuple = (5, 0, 3, 1, 2, 40, 66)
    rows: tuple | None = None  # (B, T)
    D: int = 12
    W: int = 4
    L: int = 3  # columns of a state; 0: no states
    dtype: torch.dtype = BF16
    weights: torch.dtype | None = None  # of weight and bias; None: x's, without bias
    state: torch.dtype | None = None
    channels_first: bool = False
    activation: int = SILU
    indexed: bool = True
    index: torch.dtype = torch.int32
    before: int = 0
    after: int = 0

    def inputs(self, device="cpu", seed=0):
        """x (token rows), the arguments of the op, and the same for the reference."""
        r = seeded(seed)
        B, T = self.rows or (1, self.before + sum(self.lengths) + self.after)
        N = self.rows[0] if self.rows else len(self.lengths)
        x = torch.randn(B, T, self.D, generator=r).to(self.dtype)
        weights = self.weights or self.dtype
        args = dict(weight=torch.randn(self.D, self.W, generator=r).to(weights))
        if self.weights:
            args["bias"] = torch.randn(self.D, generator=r).to(weights)
        if not self.rows:
            args["query_start_loc"] = (torch.tensor((0, *self.lengths)).cumsum(0) + self.before).to(self.index)
        if self.L:
            args["conv_states"] = torch.randn(N + 2, self.D, self.L, generator=r).to(self.state or self.dtype)
            args["has_initial_state"] = torch.arange(N) % 3 != 1
            if self.indexed:
                args["cache_indices"] = torch.randperm(N + 2, generator=r)[:N].to(self.index)
        args = {k: guarded(v, device) if v.dtype != torch.bool else v.to(device) for k, v in args.items()}
        x = guarded(x, device)
        x = x.mT if self.channels_first else x
        return SimpleNamespace(x=x if self.rows else x[0], **args)

    def call(self, a, op=gdn_ops.causal_conv1d_fn, **other):
        return op(**vars(a) | other, activation=self.activation, channels_first=self.channels_first)

    def reference(self, a, **other):
        return self.call(a, reference.causal_conv1d_fn, **other)


CASES = [
    Case(),
    Case(W=2, L=1, index=torch.int64, before=3, after=2),
    Case(W=3, L=2, dtype=FP16, weights=FP32, activation=NONE, after=17),
    Case(L=6, weights=BF16),
    Case(L=5, indexed=False, state=FP32, weights=FP32),
    Case(D=64, dtype=FP32, weights=FP32, L=3),
    Case(D=66, W=3, L=3, indexed=False, dtype=FP16, state=FP32),
    Case(D=65, dtype=FP16, weights=FP16, L=4),
    Case(channels_first=True, weights=FP32, before=1),
    Case(rows=(3, 37), weights=BF16, indexed=False),
    Case(rows=(2, 2), channels_first=True, L=4, indexed=False, weights=FP32),
    Case(rows=(2, 65), L=0, channels_first=True),
    Case(L=0, W=2, dtype=FP32),
    Case(lengths=(300,), D=8, before=1),
    Case(lengths=(), after=20, L=3),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(backend, case):
    a = case.inputs(backend.device)
    want, states = case.reference(a)
    before = a.conv_states.clone() if case.L else None
    y = case.call(a)
    assert y.dtype == case.dtype and (y.mT if case.channels_first else y).is_contiguous()
    assert_close(y, want, RMS[case.dtype], what="y")
    if case.L:
        assert torch.equal(a.conv_states.cpu().double(), states)
        a.conv_states.copy_(before)
    assert torch.equal(y, case.call(a))


@pytest.mark.parametrize("W", [2, 3, 4])
def test_short_sequences_keep_their_history(backend, W):
    """Lengths 0 to 5 with and without a history: the same as feeding their tokens one at a time."""
    case = Case(lengths=(0, 1, 2, 3, 5) * 2, W=W, L=W - 1, weights=FP32)
    a = case.inputs(backend.device)
    states, y = a.conv_states.clone(), torch.empty_like(a.x)
    for n in range(len(case.lengths)):
        start, end = a.query_start_loc[n : n + 2].tolist()
        if end > start and not a.has_initial_state[n]:
            states[a.cache_indices[n].item()] = 0
        for t in range(start, end):
            y[t] = gdn_ops.causal_conv1d_update(a.x[t : t + 1], states, a.weight, a.bias, SILU, a.cache_indices[n : n + 1])[0]
    assert torch.equal(case.call(a), y) and torch.equal(a.conv_states, states)


@pytest.mark.parametrize("cut", [1, 2, 3, 63, 64, 65, 128, 199])
def test_one_call_and_two(backend, cut):
    case = Case(lengths=(200,), weights=BF16)
    a = case.inputs(backend.device)
    parts, states = [], a.conv_states.clone()
    for i, (start, end) in enumerate([(0, cut), (cut, 200)]):
        has = torch.tensor([i > 0 or bool(a.has_initial_state[0])], device=backend.device)
        parts.append(gdn_ops.causal_conv1d_fn(a.x[start:end], a.weight, a.bias, states, None, a.cache_indices, has, SILU))
    assert torch.equal(torch.cat(parts), case.call(a)) and torch.equal(states, a.conv_states)


@pytest.mark.parametrize("length", [1, 2, 64, 65])
def test_recycled_slots_are_not_read(backend, length):
    """has_initial_state false is zeros whatever the slot holds, NaN included, and also for one token."""
    case = Case(lengths=(length,) * 3, weights=BF16)
    a = case.inputs(backend.device)
    a.has_initial_state = torch.tensor([False, True, False], device=backend.device)
    results = []
    for content in (0.0, float("nan"), 7.0):
        for n in (0, 2):
            a.conv_states[a.cache_indices[n].item()] = content
        states = a.conv_states.clone()
        results.append((case.call(a, conv_states=states), states))
    for y, states in results[1:]:
        assert torch.equal(y, results[0][0])
        used = a.cache_indices.long()
        assert torch.equal(states[used], results[0][1][used])
    a.has_initial_state[:] = False
    none = case.call(a, has_initial_state=None)
    assert torch.equal(none, case.call(a))


@pytest.mark.parametrize("D, start", [(64, 3), (66, 3), (100, 3), (64, 4), (64, 2), (64, 0)])
@pytest.mark.parametrize("weights", [None, BF16])
def test_slices_of_a_projection(backend, D, start, weights):
    """x is the transpose of a column slice; its neighbours are NaN. Packed and as rows of a batch with an odd stride."""
    case = Case(lengths=(70, 30, 0, 20), D=D, channels_first=True, weights=weights)
    a = case.inputs(backend.device)
    for width in (197, 200):
        wide = torch.full((120, width), float("nan"), dtype=BF16, device=backend.device)
        wide[:, start : start + D] = a.x.t()
        x, states = wide[:, start : start + D].t(), a.conv_states.clone()
        y = case.call(a, x=x, conv_states=states)
        want, after = case.reference(a)
        assert_close(y, want, RMS[BF16])
        assert torch.equal(states.cpu().double(), after) and y.t().is_contiguous()
    rows = guarded(torch.randn(3, 21 * D + 5, generator=seeded(5)).to(BF16), backend.device)[:, : 21 * D].unflatten(1, (D, 21))
    for view in (rows, rows[:, :, ::2], rows.transpose(1, 2).contiguous().transpose(1, 2)):
        y = gdn_ops.causal_conv1d_fn(view, a.weight, channels_first=True)
        assert_close(y, reference.causal_conv1d_fn(view, a.weight, channels_first=True)[0], RMS[BF16])


def test_layouts_of_states_weights_and_indices(backend):
    """Channel-last pools, slices of longer lines, a layer of many, every other slot; strided weights, flags, indices."""
    case = Case(lengths=(5, 1, 40), D=16, weights=FP32, index=torch.int64)
    a = case.inputs(backend.device)
    y, after = case.call(a, conv_states=a.conv_states.clone()), case.reference(a)[1]
    wide = lambda *shape: torch.full(shape, 77.0, dtype=BF16, device=backend.device)  # noqa: E731
    pools = [
        wide(5, 3, 16).transpose(1, 2),
        wide(5, 16, 8)[:, :, :3],
        wide(5, 16, 8)[:, :, 5:],
        wide(4, 5, 16, 3)[2],
        wide(10, 16, 3)[::2],
        wide(16, 5, 3).transpose(0, 1),
        wide(5, 16, 6)[:, :, ::2],
        wide(5, 3, 19).transpose(1, 2)[:, :16],
    ]
    for pool in pools:
        pool.copy_(a.conv_states)
        total = lambda pool: (pool._base == 77).sum().item()  # noqa: E731
        untouched = total(pool)
        got = case.call(a, conv_states=pool)
        assert torch.equal(got, y) and torch.equal(pool.cpu().double(), after) and total(pool) == untouched
    a = case.inputs(backend.device)
    strided = dict(weight=a.weight.t().contiguous().t(), bias=a.bias.repeat_interleave(2)[::2])
    strided |= {k: torch.stack([getattr(a, k)] * 3, 1)[:, 1] for k in ("cache_indices", "has_initial_state", "query_start_loc")}
    assert torch.equal(case.call(a, **strided), y)
    beyond = a.query_start_loc.new_tensor([-5, 5, 6, 4000])  # clamped to the tokens there are
    assert torch.equal(case.call(case.inputs(backend.device), query_start_loc=beyond), y)


def test_inputs_are_stored_as_they_are(backend):
    """Infinity and 6e4 in fp16: results saturate, histories do not."""
    x = torch.tensor([[6e4, -6e4] * 2, [float("inf"), 3.0] * 2, [1.0, -float("inf")] * 2], dtype=FP16, device=backend.device)
    slots, w = torch.zeros(1, dtype=torch.int32, device=backend.device), torch.full((4, 4), 2.0, device=backend.device)
    for states in (x.new_zeros(1, 4, 3), x.new_zeros(1, 3, 4).mT, x.new_zeros(1, 4, 5)[:, :, :3]):
        y = gdn_ops.causal_conv1d_fn(x, w, None, states, None, slots)
        assert y[0].tolist() == [65504, -65504] * 2 and torch.equal(states[0].t(), x)


def test_many_sequences(backend):
    N = 70000 if backend.name != "interpreter" else 700
    x = torch.randn(N, 64, generator=seeded(6)).to(BF16).to(backend.device)
    w = torch.randn(64, 4, generator=seeded(7)).to(BF16).to(backend.device)
    states = torch.zeros(N, 64, 3, dtype=BF16, device=backend.device)
    cu = torch.arange(N + 1, device=backend.device)
    slots = torch.arange(N, device=backend.device).flip(0)
    y = gdn_ops.causal_conv1d_fn(x, w, None, states, cu, slots, activation=SILU)
    assert_close(y, torch.nn.functional.silu(x.double() * w[:, 3].double()), RMS[BF16])
    assert torch.equal(states[:, :, 2].flip(0), x) and not states[:, :, :2].any()


def test_nothing(backend):
    x = torch.zeros(0, 8, device=backend.device)
    w, states = torch.zeros(8, 4, device=backend.device), torch.ones(3, 8, 3, device=backend.device)
    for cu in ([0], [0, 0], [0, 0, 0, 0]):
        cu = torch.tensor(cu, device=backend.device)
        assert gdn_ops.causal_conv1d_fn(x, w, None, states, cu).shape == (0, 8)
    assert gdn_ops.causal_conv1d_fn(x, w).shape == (0, 8)
    assert gdn_ops.causal_conv1d_fn(x.new_zeros(2, 8, 0), w, None, states, channels_first=True).shape == (2, 8, 0)
    assert gdn_ops.causal_conv1d_fn(x.new_zeros(0, 5, 8), w).shape == (0, 5, 8) and (states == 1).all()


def test_refusals(backend):
    x, w = torch.zeros(6, 8, device=backend.device), torch.zeros(8, 4, device=backend.device)
    states, cu, slots = x.new_zeros(3, 8, 3), torch.tensor([0, 6], device=backend.device), torch.tensor([0], device=backend.device)
    ids = torch.zeros(1, 6, dtype=torch.int32, device=backend.device)
    cases = [
        ((x[0], w), {}, r"gdn.causal_conv1d_fn: x: expected \[T, D\] or \[B, T, D\], got \[8\]"),
        ((x[None, None], w), dict(channels_first=True), r"x: expected \[D, T\] or \[B, D, T\]"),
        ((x, w), dict(channels_first=True), r"weight: expected shape \[6, any\], got \[8, 4\]"),
        ((x[:, :0], w[:0]), {}, "x: expected at least one channel"),
        ((x.double(), w), {}, "x: expected bf16 or fp16 or fp32, got another dtype"),
        ((x, w.half()), {}, "weight: expected fp32, got fp16"),
        ((x, w[:, :1]), {}, "weight: expected width 2, 3 or 4, got 1"),
        ((x, x.new_zeros(8, 5)), {}, "weight: expected width 2, 3 or 4, got 5"),
        ((x, w, w[:4, 0]), {}, r"bias: expected shape \[8\], got \[4\]"),
        ((x, w, None, states[:, :, :2]), {}, r"conv_states: expected at least W - 1 columns, got \[3, 8, 2\]"),
        ((x, w, None, states[:, :4]), {}, r"conv_states: expected shape \[any, 8, any\]"),
        ((x, w, None, states.half()), {}, "conv_states: expected fp32, got fp16"),
        ((x, w, None, states[:1, :1].expand(3, 8, 3)), {}, "conv_states: expected an element for every index"),
        ((x, w, None, states[:0]), {}, "conv_states: expected a state for every sequence"),
        ((x[None], w, None, None, cu), {}, "x: expected no batch dimension with query_start_loc"),
        ((x, w, None, None, cu.float()), {}, "query_start_loc: expected int32 or int64, got fp32"),
        ((x, w, None, None, cu[:0]), {}, r"query_start_loc: expected N \+ 1 entries, got \[0\]"),
        ((x, w, None, None, cu, slots), {}, "cache_indices: expected None without conv_states"),
        ((x, w, None, states, cu, cu), {}, r"cache_indices: expected shape \[1\], got \[2\]"),
        ((x, w, None, states, cu, slots, slots), {}, "has_initial_state: expected bool, got int64"),
        ((x, w, None, None, cu, None, slots > 0), {}, "has_initial_state: expected None without conv_states"),
        ((x, w), dict(activation=2), r"activation: expected 0 \(none\) or 1 \(silu\), got 2"),
        ((x, w), dict(seq_idx=slots), r"seq_idx: expected shape \[1, 6\], got \[1\]"),
        ((x, w, None, states), dict(seq_idx=ids), r"conv_states: expected None with seq_idx, got \[3, 8, 3\]"),
        ((x, w, None, None, cu), dict(seq_idx=ids), "query_start_loc: expected None with seq_idx"),
        ((x, w), dict(seq_idx=ids, checkpoints=states, checkpoint_every=4, checkpoint_indices=ids[:, :1]), "checkpoints: expected None with"),
        ((x, w), dict(checkpoints=states, checkpoint_indices=ids), "checkpoint_every: expected at least 1 with checkpoints, got 0"),
        ((x, w), dict(checkpoints=states, checkpoint_every=4), "checkpoint_indices: expected a tensor, got None"),
        ((x, w), dict(checkpoints=states[:, :, :2], checkpoint_every=4, checkpoint_indices=ids), r"checkpoints: expected shape \[any, 8, 3\]"),
        ((x, w), dict(checkpoints=states, checkpoint_every=4, checkpoint_indices=ids.repeat(2, 1)), r"checkpoint_indices: .*\[1, any\]"),
        ((x, w), dict(checkpoints=states, checkpoint_every=4, checkpoint_indices=ids, prefix_lens=cu), r"prefix_lens: expected shape \[1\]"),
        ((x, w), dict(checkpoint_indices=ids, prefix_lens=slots), "checkpoint_indices: expected None without checkpoints.*prefix_lens: .*None"),
        ((x.clone().requires_grad_(), w), {}, "x: expected no gradient"),
        ((x, w[:, :1], w[:4, 0]), dict(activation=9), "weight: .*; bias: .*; activation: "),
    ]  # fmt: skip
    for args, options, text in cases:
        with pytest.raises(RuntimeError, match=text):
            gdn_ops.causal_conv1d_fn(*args, **options)
