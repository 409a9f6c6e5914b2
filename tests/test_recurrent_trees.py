"""Draft trees: each token continues from the state after its parent."""

import pytest
import torch
from recurrent_cases import BF16, Case, bits, check, lengths, setup, table, with_steps
from recurrent_cases import run_update as run

#      0            0        -1 -1     the first entry may hold anything; entries that are no earlier token are -1
#     1 2 4        1 2        |  |
#     3  5        3 4 5 ..
TREES = [
    [[99, 0, 0, 1, 0, 2], [0, -1, 1, -1, 3, 0]],
    [[-1, 0, 1, 2, 3, 4], [-1, -1, -1, 2, 2, 2]],
    [[0, 1, 7, -9, 2**31 - 1, 3], [0, 0, 1, 1, 2, 2]],
]


def tree(case, device, parents, dtype=torch.int32):
    pair = torch.tensor(parents, dtype=dtype, device=device)
    return torch.stack([pair[n % 2] for n in range(case.N)], 1).t()


@pytest.mark.parametrize("parents", TREES, ids=["trees", "chain and star", "bad values"])
@pytest.mark.parametrize(
    "case",
    [
        Case("rows", B=2, T=6, raw=True),
        Case("v-first", B=1, T=6, K=128, HV=1, v_first=True, state=BF16),
        Case("packed", lengths=(6, 0, 3, 6), index=torch.int32, v_first=True),
        Case("odd-sizes", B=2, T=6, K=48, V=20),
        Case("short-rows", B=2, T=6, V=64, raw=True, HV=1),
        Case("short-rows-v-first", lengths=(6, 0, 3, 6), K=128, V=128, HV=1, v_first=True, state=BF16),
    ],
    ids=str,
)
def test_trees(backend, case, parents):
    parents = tree(case, backend.device, parents, case.index)
    x = setup(case, backend.device)
    buffer = with_steps(case, x, backend.device, case.N, columns=6)
    _, written, stored = check(case, x, parents=parents, intermediate_states=buffer)
    assert written == x.slots[[length > 0 for length in lengths(case)]].tolist()
    again = setup(case, backend.device)
    o = run(case, again, parents=parents)
    with_buffer = setup(case, backend.device)
    assert torch.equal(run(case, with_buffer, parents=parents, intermediate_states=buffer.half()), o)
    assert torch.equal(bits(again.storage), bits(x.storage)), "the buffer has no say in the states"


@pytest.mark.parametrize("parents", TREES, ids=["trees", "chain and star", "bad values"])
@pytest.mark.parametrize("column", [0, 2, 5])
@pytest.mark.parametrize("V", [32, 64], ids=["token loop", "short rows"])
def test_tree_replaces_its_start_state(backend, parents, column, V):
    """Siblings continue from the row's start state also after a token whose slot that is."""
    case = Case("", B=2, T=6, HV=1, V=V)
    x, slots = setup(case, backend.device, count=13), table(case, backend.device, columns=6)
    counts = torch.full((2,), column + 1, device=backend.device)
    _, written = check(case, x, ssm_indices=slots, num_accepted_tokens=counts, parents=tree(case, backend.device, parents))
    assert written == list(range(1, 13))


@pytest.mark.parametrize("V", [32, 64], ids=["token loop", "short rows"])
def test_one_slot_for_every_token(backend, V):
    """Columns that are all the start slot: the last token's state stays."""
    case = Case("", B=1, T=4, V=V)
    x = setup(case, backend.device)
    slots = torch.full((1, 4), 2, device=backend.device)
    assert check(case, x, ssm_indices=slots, parents=torch.tensor([[-1, 0, -1, 0]], device=backend.device))[1] == [2]


@pytest.mark.parametrize("case", [Case("", B=1, T=64, HV=1, V=16), Case("", B=2, T=16, HV=1, V=64)], ids=["token loop", "short rows"])
def test_chain_as_a_tree(backend, case):
    """A tree that is a chain has the chain's bits; a deep tree."""
    x, want = setup(case, backend.device), setup(case, backend.device)
    chain = torch.arange(-1, case.T - 1, device=backend.device).expand(case.B, -1)
    assert torch.equal(run(case, x, parents=chain), run(case, want)) and torch.equal(bits(x.storage), bits(want.storage))
    check(case, x, parents=torch.where(chain % 16 == 15, chain // 2, chain))
