"""How LightLLM, SGLang and vLLM verify drafts, step after step, against a loop over the accepted tokens in float64."""

import pytest
import torch
from harness import assert_close, guarded
from recurrent_cases import BF16, FP32, RMS, Case
from recurrent_cases import run_update as run
from recurrent_cases import setup as random_setup

from gdn_ops import reference

S = 3  # draft tokens
COUNTS = [(1, 4), (2, 2), (3, 1), (4, 3)]  # accepted of two rows, in the first step and turn by turn after it
per_flow = pytest.mark.parametrize("counts", COUNTS, ids=str)
STATES = 5e-6  # a few steps in float32, never rounded to less on the way


class Truth:
    """The float64 state of every row, which only accepted tokens change."""

    def __init__(self, case, h):
        self.case, self.h = case, h.cpu().double()

    def verify(self, x, begin, length, n):
        """Outputs of row n's tokens as drafted, and the state after each."""
        g, beta = reference.fused_gdn_gating(*(t.cpu() for t in (x.A_log, x.a, x.b, x.dt_bias)))
        outputs, after = [], [self.h[n : n + 1]]
        for t in range(begin, begin + length):
            row = [y[:, t : t + 1] for y in (x.q, x.k, x.v, g, beta)]
            o, h = reference.gated_delta_rule(*row, None, after[-1], None, True, self.case.v_first)
            outputs.append(o), after.append(h)
        return torch.cat(outputs, 1), torch.cat(after[1:])


def drafts(case, device, step):
    """One step's tokens, packed: S + 1 a row, of which the engine later accepts the first few."""
    x = case.tokens(device, seed=50 + step)
    return {n: getattr(x, n) for n in ("q", "k", "v", "a", "b")}, x


def steps(case, counts):
    """(step, lengths, accepted): the last step's accepted counts lead into a step without drafts and one more with them."""
    turn = [counts, counts[::-1], (4, 1), (2, 3), (1, 1)]
    for step, accepted in enumerate(turn):
        rows = [S + 1] * case.N if step != 2 else [1, S + 1]  # plain and speculative rows in one batch
        yield step, rows, [min(a, r) for a, r in zip(accepted, rows)]


def case_of(rows, **more):
    return Case("", H=1, HV=2, K=64, V=32, lengths=tuple(rows), raw=True, **more)


def int32(values, device):
    return guarded(torch.tensor(values, dtype=torch.int32), device)


def check_outputs(truth, o, x, rows):
    """Compares every drafted token's output; returns the states after each, row by row."""
    begin, after = 0, []
    for n, length in enumerate(rows):
        want, states = truth.verify(x, begin, length, n)
        assert_close(o[:, begin : begin + length], want, RMS[BF16], what=f"row {n}")
        after.append(states)
        begin += length
    return after


def weights(x, first):
    """A layer's own A_log and dt_bias do not change from step to step."""
    x.A_log, x.dt_bias = first.A_log, first.dt_bias
    return dict(A_log=x.A_log, dt_bias=x.dt_bias)


@per_flow
@pytest.mark.parametrize("separate", [False, True])
def test_lightllm(backend, counts, separate):
    """KV states, [N, S + 1] slots: read where the last step's accepted token left its state, written one a token, here or in
    a second set of slots that changes places with the first."""
    case = case_of([S + 1] * 2)
    x0 = random_setup(case, backend.device, count=20)
    tables = [int32([[1, 2, 3, 4], [5, 6, 7, 8]], backend.device), int32([[9, 10, 11, 12], [13, 14, 15, 16]], backend.device)]
    accepted = [1, 1]
    truth = Truth(case, x0.pool[tables[0][:, 0].long()])
    for step, rows, following in steps(case, counts):
        case = case_of(rows)
        tokens, x = drafts(case, backend.device, step)
        read, write = (tables[step % 2], tables[1 - step % 2]) if separate else (tables[0], tables[0])
        kept = x0.pool[[0, 17, 18, 19]].clone()
        o = run(
            case, x0, **tokens, **weights(x, x0), cu_seqlens=x.cu_seqlens, ssm_indices=read, ssm_write_indices=write if separate else None,
            num_accepted_tokens=int32(accepted, backend.device),
        )  # fmt: skip
        after = check_outputs(truth, o, x, rows)
        for n, count in enumerate(following):
            truth.h[n] = after[n][count - 1]
            assert_close(x0.pool[write[n, count - 1].item()], truth.h[n], STATES, what=f"step {step}, row {n}")
        assert torch.equal(x0.pool[[0, 17, 18, 19]], kept)
        accepted = following


@per_flow
@pytest.mark.parametrize("state", [FP32, BF16])
def test_sglang(backend, counts, state):
    """VK states, one slot a row and padding at the end: target verify leaves the pool alone and keeps every step's state aside;
    the accepted one is scattered into the pool."""
    case = case_of([S + 1] * 2, v_first=True, state=state)
    x0 = random_setup(case, backend.device, count=6)
    slots, buffer_slots = int32([3, 1, -1], backend.device), int32([2, 0, 1], backend.device)
    buffer = torch.full((3, S + 1, *x0.pool.shape[1:]), float("nan"), dtype=state, device=backend.device)
    truth = Truth(case, x0.pool[slots[:2].long()])
    for step, rows, following in steps(case, counts):
        case = case_of([*rows, 2], v_first=True, state=state)
        tokens, x = drafts(case, backend.device, step)
        before = x0.storage.clone()
        o = run(
            case, x0, **tokens, **weights(x, x0), cu_seqlens=x.cu_seqlens, ssm_indices=slots, intermediate_states=buffer,
            intermediate_indices=buffer_slots, update_state=False,
        )  # fmt: skip
        assert torch.equal(x0.storage[:-64], before[:-64]), "the pool is frozen"
        assert not o[:, -2:].any() and buffer[1].isnan().all(), "padding"
        after = check_outputs(truth, o, x, rows)
        for n, count in enumerate(following):
            state_n = buffer[buffer_slots[n].item(), count - 1]
            assert_close(state_n, after[n][count - 1], STATES if state == FP32 else 2.5e-3, what=f"step {step}, row {n}")
            x0.pool[slots[n].item()] = state_n  # the scatter
            truth.h[n] = state_n.cpu().double()


@per_flow
def test_sglang_tree(backend, counts):
    """The same with draft trees: the accepted path's last token says which state is scattered."""
    parents = [[-7, 0, 0, 1], [0, 0, 1, 1]]
    paths = [{1: [0], 2: [0, 2], 3: [0, 1, 3], 4: [0, 1, 3]}, {1: [0], 2: [0, 1], 3: [0, 1, 2], 4: [0, 1, 3]}]
    case = case_of([S + 1] * 2, v_first=True)
    x0 = random_setup(case, backend.device, count=4)
    slots = int32([3, 1], backend.device)
    buffer = torch.full((2, S + 1, *x0.pool.shape[1:]), float("nan"), device=backend.device)
    truth = Truth(case, x0.pool[slots.long()])
    for step, accepted in enumerate([counts, counts[::-1]]):
        tokens, x = drafts(case, backend.device, step)
        o = run(
            case, x0, **tokens, **weights(x, x0), cu_seqlens=x.cu_seqlens, ssm_indices=slots, intermediate_states=buffer,
            parents=torch.tensor(parents, device=backend.device), update_state=False,
        )  # fmt: skip
        for n, count in enumerate(accepted):
            path = paths[n][count]
            at = [4 * n + t for t in path]
            alone = type(x)(**{**vars(x), **{i: tokens[i][:, at] for i in tokens}})
            want, after = truth.verify(alone, 0, len(path), n)
            assert_close(o[:, at], want, RMS[BF16], what=f"step {step}, row {n}")
            assert_close(buffer[n, path[-1]], after[-1], STATES, what="accepted state")
            x0.pool[slots[n].item()] = buffer[n, path[-1]]
            truth.h[n] = after[-1]


@per_flow
def test_vllm(backend, counts):
    """VK states, [N, S + 1] columns of a block table with 0 for padding rows; a step without drafts reads where the verify
    before it left the accepted state."""
    case = case_of([S + 1] * 2, v_first=True)
    x0 = random_setup(case, backend.device, count=12)
    blocks = int32([[4, 9, 2, 11, 0], [7, 1, 6, 3, 0], [0, 0, 0, 0, 0]], backend.device)  # the last row pads the graph
    table = blocks[:, : S + 1]
    accepted = [1, 1]
    truth = Truth(case, x0.pool[table[:2, 0].long()])
    for step, rows, following in steps(case, counts):
        case = case_of([*rows, 0], v_first=True)
        tokens, x = drafts(case, backend.device, step)
        kept = x0.pool[[0, 5, 8, 10]].clone()
        o = run(
            case, x0, **tokens, **weights(x, x0), cu_seqlens=x.cu_seqlens, ssm_indices=table, min_slot=1,
            num_accepted_tokens=int32([*accepted, 1], backend.device),
        )  # fmt: skip
        after = check_outputs(truth, o, x, rows)
        for n, count in enumerate(following):
            truth.h[n] = after[n][count - 1]
            assert_close(x0.pool[table[n, count - 1].item()], truth.h[n], STATES, what=f"step {step}, row {n}")
        assert torch.equal(x0.pool[[0, 5, 8, 10]], kept)
        accepted = following
