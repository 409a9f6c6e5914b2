"""causal_conv1d_update where drafts are verified: accepted counts, packed rows, windows, trees, rings."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from harness import assert_close, guarded, seeded

import gdn_ops
from gdn_ops import NONE, SILU, reference

RMS = {torch.float32: 2e-6, torch.bfloat16: 2.5e-3, torch.float16: 4e-4}  # rounding of the stored output
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
BAD = 2**33 + 1  # its low half is a number in range


@dataclass(frozen=True)
class Case:
    """Rows of T tokens, or packed rows of ``lengths``; S drafts fit the lines."""

    T: int | None = 3
    lengths: tuple = ()
    S: int = 3
    D: int = 20
    W: int = 4
    dtype: torch.dtype = BF16
    state: torch.dtype | None = None
    bias: bool = True
    index: torch.dtype = torch.int32
    indexed: bool = True
    layout: str = "lines"  # of states and windows: lines, channels
    accepted: bool = False
    windows: bool = False
    tree: bool = False
    ring: bool = False

    def inputs(self, device, seed=0):
        r = seeded(seed)
        N, most = len(self.lengths) or 4, max(self.lengths) if self.lengths else self.T or 1
        L = self.W - 1 + (self.S if self.accepted else 3 if self.ring else 0)
        normal = lambda *shape, dtype=self.dtype: torch.randn(*shape, generator=r).to(dtype)  # noqa: E731
        ints = lambda low, high, *shape: torch.randint(low, high, shape, generator=r).to(self.index)  # noqa: E731
        shape = (sum(self.lengths) + 2, self.D) if self.lengths else (N, self.D) if self.T is None else (N, self.T, self.D)
        a = dict(x=normal(*shape), conv_state=normal(N + 2, self.D, L, dtype=self.state or self.dtype))
        a |= dict(weight=normal(self.D, self.W, dtype=self.state or self.dtype))
        if self.bias:
            a["bias"] = normal(self.D)
        if self.lengths:
            a["query_start_loc"] = torch.tensor((0, *self.lengths)).cumsum(0).to(self.index)
        if self.indexed:
            a["conv_state_indices"] = torch.randperm(N + 2, generator=r)[:N].to(self.index)
        if self.accepted:
            a["num_accepted_tokens"] = ints(1, self.S + 2, N)
        if self.ring:
            a["cache_seqlens"] = ints(0, 40, N)
        if self.windows:
            a["intermediate_windows"] = normal(N + 1, most, self.D, self.W - 1, dtype=self.state or self.dtype)
            a["intermediate_indices"] = torch.randperm(N + 1, generator=r)[:N].to(self.index)
        if self.tree:
            a["parents"] = torch.stack([ints(-1, max(t, 1), N) for t in range(most)], 1)
        a = {k: guarded(v, device) for k, v in a.items()}
        for name in ("conv_state", "intermediate_windows"):
            if self.layout == "channels" and name in a:
                a[name] = a[name].mT.contiguous().mT
        a["x"] = a["x"].mT if a["x"].dim() == 3 else a["x"]
        return SimpleNamespace(**a)


def check(a, activation=SILU, **other):
    """Values, the state and the windows bit for bit, and the same bits again."""
    before = {n: getattr(a, n).clone() for n in ("conv_state", "intermediate_windows") if hasattr(a, n)}
    want, *wants = reference.causal_conv1d_update(**vars(a) | other, activation=activation)
    y = gdn_ops.causal_conv1d_update(**vars(a) | other, activation=activation)
    assert_close(y, want, RMS[a.x.dtype], what="y")
    for (name, old), new in zip(before.items(), wants):
        assert torch.equal(getattr(a, name).cpu().double(), new), name
        getattr(a, name).copy_(old)
    assert torch.equal(y, gdn_ops.causal_conv1d_update(**vars(a) | other, activation=activation))
    return y


CASES = [
    Case(accepted=True, T=4),
    Case(accepted=True, T=None, index=torch.int64, dtype=FP16),
    Case(accepted=True, T=1, S=0, D=64),
    Case(accepted=True, lengths=(4, 0, 1, 3, 2), D=64, layout="channels"),
    Case(accepted=True, lengths=(2, 4), W=3, state=FP32),
    Case(accepted=True, W=2, S=5, T=6, dtype=FP32, indexed=False),
    Case(accepted=True, D=65, T=2, W=3, dtype=FP16, bias=False),
    Case(accepted=True, D=256, T=4),
    Case(accepted=True, D=128, S=5, lengths=(6, 0, 1, 5, 2), dtype=FP16),
    Case(accepted=True, D=128, S=14, T=15),
    Case(accepted=True, D=128, T=4, windows=True),
    Case(lengths=(1, 0, 40, 3), index=torch.int64),
    Case(windows=True, T=4),
    Case(windows=True, T=None, D=65),
    Case(windows=True, T=5, W=2, dtype=FP32),
    Case(windows=True, lengths=(4, 0, 1, 3), layout="channels", D=64, index=torch.int64),
    Case(windows=True, T=3, state=FP32, dtype=FP16, indexed=False),
    Case(windows=True, accepted=True, T=4, D=12),
    Case(windows=True, tree=True, T=7),
    Case(windows=True, tree=True, T=6, W=3, D=65, index=torch.int64, bias=False),
    Case(windows=True, tree=True, T=5, W=2, dtype=FP32),
    Case(windows=True, tree=True, lengths=(8, 0, 1, 5), layout="channels", D=64, dtype=FP16),
    Case(windows=True, tree=True, T=4, accepted=True),
    Case(ring=True, T=None),
    Case(ring=True, T=4, D=64, layout="channels"),
    Case(ring=True, T=9, W=3, dtype=FP32, indexed=False),
    Case(ring=True, lengths=(2, 0, 13), W=2, index=torch.int64, dtype=FP16, state=FP32),
    Case(ring=True, windows=True, tree=True, T=4),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(backend, case):
    a = case.inputs(backend.device)
    check(a)
    check(a, min_slot=2) if case.indexed else check(a, activation=NONE)


@pytest.mark.parametrize("accepted", [1, 2, 3, 4])
def test_accepted_drafts_of_the_last_step(backend, accepted):
    """Offset 0 would always give 8432, no roll-back 8765."""
    new = lambda *x: torch.tensor([[x]], dtype=FP32, device=backend.device)  # noqa: E731
    count = lambda n: torch.tensor([n], dtype=torch.int32, device=backend.device)  # noqa: E731
    state, w = new(1, 2, 3, 0, 0, 0), new(1, 10, 100, 1000)[0]
    y = gdn_ops.causal_conv1d_update(new(4, 5, 6, 7), state, w, num_accepted_tokens=count(1))
    assert y.flatten().tolist() == [4321, 5432, 6543, 7654] and state.flatten().tolist() == [2, 3, 4, 5, 6, 7]
    y = gdn_ops.causal_conv1d_update(new(8), state, w, num_accepted_tokens=count(accepted))
    assert y.item() == {1: 8432, 2: 8543, 3: 8654, 4: 8765}[accepted]
    assert state.flatten().tolist()[:3] == [2 + accepted, 3 + accepted, 8] and state.flatten().tolist()[3:] == [5, 6, 7]


@pytest.mark.parametrize("position", [0, 5, 6, 13])
def test_ring(backend, position):
    """The history is the columns before position mod 6, the new input goes there."""
    line = [1.0, 2, 3, 4, 5, 6]
    at = position % 6
    want = 7000 + 100 * line[at - 1] + 10 * line[at - 2] + line[at - 3]
    state = torch.tensor([[line]], device=backend.device)
    w, x = torch.tensor([[1.0, 10, 100, 1000]], device=backend.device), torch.full((1, 1), 7.0, device=backend.device)
    y = gdn_ops.causal_conv1d_update(x, state, w, cache_seqlens=torch.tensor([position], device=backend.device))
    line[at] = 7.0
    assert y.item() == want and state.flatten().tolist() == line


def steps(x, weight, bias, history):
    """Token by token from ``history``: the results, and the window after every one."""
    y, windows = [], []
    for t in range(x.shape[1]):
        window = torch.cat([history, x[:, t, :, None]], 2)  # [N, D, W]
        history = window[:, :, 1:]
        y.append(torch.nn.functional.silu((window * weight).sum(-1) + bias))
        windows.append(history)
    return torch.stack(y, 1), torch.stack(windows, 1)


@pytest.mark.parametrize("flow", ["wide", "windows"])
@pytest.mark.parametrize("W", [2, 4])
def test_verify_and_accept(backend, flow, W):
    """Steps of S + 1 tokens, of which every count is accepted: nothing of a rejected token is ever seen again."""
    S, N, D, rounds = 3, 5, 64, 8
    r = seeded(3)
    normal = lambda *shape: torch.randn(*shape, generator=r).to(BF16)  # noqa: E731
    weight, bias, history = normal(D, W), normal(D), normal(N, D, W - 1)
    slots = torch.randperm(N + 2, generator=r)[:N]
    state = torch.full((N + 2, D, W - 1 + (S if flow == "wide" else 0)), float("nan"), dtype=BF16)
    state[slots, :, : W - 1] = history
    device = lambda x: x.to(backend.device)  # noqa: E731
    state, args = device(state), dict(weight=device(weight), bias=device(bias), activation=SILU, conv_state_indices=device(slots))
    windows = device(torch.full((N, S + 1, D, W - 1), float("nan"), dtype=BF16)) if flow == "windows" else None
    accepted, counts = torch.ones(N, dtype=torch.long), set()
    for _ in range(rounds):
        x = normal(N, S + 1, D)
        want, after = steps(x.double(), weight.double(), bias.double(), history.double())
        more = dict(num_accepted_tokens=device(accepted)) if flow == "wide" else dict(intermediate_windows=windows)
        y = gdn_ops.causal_conv1d_update(device(x).mT, state, **args, **more)
        assert_close(y.mT, want, RMS[BF16])
        accepted = torch.randint(1, S + 2, (N,), generator=r)
        counts |= set(accepted.tolist())
        history = after[torch.arange(N), accepted - 1].to(BF16)
        if flow == "windows":
            state[slots] = windows[torch.arange(N), accepted - 1]
    assert counts == set(range(1, S + 2))


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_values_out_of_range_are_padding(backend, index):
    """Counts, positions, slots and rows too long touch nothing; a window's slot skips that store alone, a parent is none."""
    bad = [-1, BAD if index == torch.int64 else -(2**31)]
    case = Case(accepted=True, T=4, index=index)
    for count in (0, 5, 6, *bad):
        a = case.inputs(backend.device)
        a.num_accepted_tokens[1::2] = count
        assert not check(a)[1::2].any()
    a = Case(accepted=True, lengths=(5, 4, 60), S=3, index=index).inputs(backend.device)
    y = check(a)
    assert not y[:5].any() and y[5:9].any() and not y[9:].any()
    a = Case(ring=True, T=2, index=index).inputs(backend.device)
    a.cache_seqlens[2] = -3
    assert not check(a)[2].any()
    for parent in (3, 4, 100, 2**31 - 1):
        a = Case(windows=True, tree=True, T=5, index=index).inputs(backend.device)
        a.parents[0, 3] = parent
        y = check(a)
        a.parents[0, 3] = -1
        assert torch.equal(y, check(a))
    a = Case(windows=True, tree=True, T=5, index=index).inputs(backend.device)
    a.parents[:, 0] = 99  # the root's is not looked at
    a.conv_state_indices[0], a.conv_state_indices[1] = bad[1], 6
    a.intermediate_indices[2], a.intermediate_indices[3] = bad[1], 5
    y = check(a)
    assert not y[:2].any() and y[2:].any()
    a = Case(windows=True, lengths=(2, 5, 9), index=index).inputs(backend.device)
    a.intermediate_windows = a.intermediate_windows[:, :5]
    y = check(a)
    assert y[:7].any() and not y[7:].any()


def test_nan_in_what_is_not_read(backend):
    """Unused slots, other columns of the line, other windows."""
    a = Case(accepted=True, T=2, S=3).inputs(backend.device)
    want = check(a)
    a = Case(accepted=True, T=2, S=3).inputs(backend.device)
    state = torch.full_like(a.conv_state, float("nan"))
    for slot, count in zip(a.conv_state_indices.tolist(), a.num_accepted_tokens.tolist()):
        state[slot, :, count - 1 : count + 2] = a.conv_state[slot, :, count - 1 : count + 2]
    a.conv_state = state
    assert torch.equal(gdn_ops.causal_conv1d_update(**vars(a), activation=SILU), want)


def test_chain_of_parents_is_no_tree(backend):
    """Bit-equal, also with windows that overlap in memory (steps and columns have the same stride)."""
    a = Case(windows=True, T=5).inputs(backend.device)
    y, windows = check(a), a.intermediate_windows
    parents = torch.tensor([[7, 0, 1, 2, 3]] * 4, device=backend.device)
    tree = windows.clone()
    assert torch.equal(gdn_ops.causal_conv1d_update(**vars(a) | dict(parents=parents, intermediate_windows=tree), activation=SILU), y)
    assert torch.equal(tree, windows)
    line = torch.zeros(5, 20, 7, dtype=BF16, device=backend.device)
    shared = line.as_strided((5, 5, 20, 3), (140, 1, 7, 1))
    assert torch.equal(gdn_ops.causal_conv1d_update(**vars(a) | dict(intermediate_windows=shared), activation=SILU), y)
    used = a.intermediate_indices.long()
    assert torch.equal(shared[used], windows[used])


@pytest.mark.parametrize("T, case", [(None, {}), (1, {}), (5, {}), (5, dict(indexed=False)), (4, dict(accepted=True)), (3, dict(windows=True)),
                                     (7, dict(ring=True)), (0, dict(lengths=(3, 0, 20)))], ids=str)  # fmt: skip
def test_in_place(backend, T, case):
    """Results take x's place, are written beside it in its own rows, or anywhere else: the same bits."""
    case = Case(T=T, D=64, **case)
    a = case.inputs(backend.device)
    if not case.indexed:  # a line that shifts takes its inputs from x
        a.conv_state = torch.randn(6, 64, 9, generator=seeded(8)).to(BF16).to(backend.device)
    state = a.conv_state.clone()
    y, after = check(a), a.conv_state.clone()
    rows = a.x.mT if a.x.dim() == 3 else a.x
    for columns in (slice(0, 64), slice(64, 128), slice(130, 194)):
        wide = torch.full((*rows.shape[:-1], 200), 77.0, dtype=BF16, device=backend.device)
        wide[..., :64] = rows
        x, out = wide[..., :64], wide[..., columns]
        x, out = (x.mT, out.mT) if a.x.dim() == 3 else (x, out)
        a.conv_state.copy_(state)
        assert gdn_ops.causal_conv1d_update(**vars(a) | dict(x=x), activation=SILU, out=out) is out
        assert torch.equal(out, y) and torch.equal(a.conv_state, after)
        assert (wide == 77).sum() == (wide[..., 0].numel() * 136 if columns.start == 0 else wide[..., 0].numel() * 72)


def test_nothing(backend):
    a = Case(accepted=True, T=3).inputs(backend.device)
    none = dict(x=a.x[:0], conv_state_indices=a.conv_state_indices[:0], num_accepted_tokens=a.num_accepted_tokens[:0])
    before = a.conv_state.clone()
    assert gdn_ops.causal_conv1d_update(**vars(a) | none).shape == (0, 20, 3)
    for bounds in ([0], [0, 0], [0, 0, 0]):
        cu = torch.tensor(bounds, device=backend.device)
        y = gdn_ops.causal_conv1d_update(a.x[:2, :, 0], a.conv_state, a.weight, query_start_loc=cu, num_accepted_tokens=cu[1:])
        assert y.shape == (2, 20) and not y.any()
    a.conv_state_indices[:] = -1
    assert not check(a).any() and torch.equal(a.conv_state, before)
