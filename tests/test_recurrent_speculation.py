"""Speculative verify on a pool of states: 2-D slots, accepted counts and intermediate states."""

import pytest
import torch
from backends import Backend
from harness import guarded
from recurrent_cases import BF16, FP16, FP32, Case, bits, check, lengths, setup, table, with_steps
from recurrent_cases import run_update as run

import gdn_ops

CASES = [
    Case("rows", B=3, T=3, raw=True),
    Case("rows-v-first", B=3, T=4, v_first=True, index=torch.int32),
    Case("plain-and-speculative", lengths=(1, 4, 0, 2, 1), before=1, after=2, raw=True, index=torch.int32),
    Case("packed-v-first", lengths=(3, 0, 4), v_first=True, state=BF16),
    Case("K128-v-first", B=2, T=4, K=128, H=2, HV=4, v_first=True, raw=True),
    Case("K128-bf16", B=2, T=2, K=128, state=BF16),
    Case("one-token", B=3, T=1, K=128, raw=True, v_first=True),
    Case("fp16", B=2, T=2, dtype=FP16, state=FP16, gates=FP16, raw=True),
    Case("fp32-activations", B=2, T=2, dtype=FP32, state=FP16, v_first=True),
    Case("odd-sizes", B=2, T=3, K=48, V=20, state=BF16),
    Case("odd-sizes-v-first", lengths=(3, 1), K=100, V=13, v_first=True),
    Case("largest", HV=1, B=1, T=2, K=256, V=256, v_first=True),
    Case("short-rows", B=3, T=3, V=64, raw=True, H=2, HV=4),
    Case("short-rows-v-first", B=2, T=4, V=64, v_first=True, state=FP16, dtype=FP16, scale=0.5),
    Case("short-rows-K128", lengths=(3, 0, 1, 4), before=1, after=2, K=128, V=128, HV=1, raw=True, state=BF16, index=torch.int32),
    Case("short-rows-K128-v-first", B=2, T=4, K=128, V=128, H=1, HV=2, v_first=True, l2norm=False, gates=BF16),
    Case("no-rows", B=0, T=3),
    Case("no-tokens", T=0),
]
SHORT = [c for c in CASES if c.name.startswith("short-rows")]
per_case = pytest.mark.parametrize("case", CASES, ids=str)
per_V = pytest.mark.parametrize("V", [32, 64], ids=["token loop", "short rows"])  # K = 64: square heads have a kernel


def accepted(case, device, columns=4):
    return guarded(torch.tensor([1 + 2 * n % columns for n in range(case.N)], dtype=case.index), device)


# ---- 2-D slots ---------------------------------------------------------------------------------------------------


@per_case
def test_slots_of_every_token(backend, case):
    x, again = (setup(case, backend.device, count=2 + 4 * case.N) for _ in range(2))
    options = dict(ssm_indices=table(case, backend.device), num_accepted_tokens=accepted(case, backend.device))
    o, written = check(case, x, **options)
    assert written == [1 + 4 * n + t for n, length in enumerate(lengths(case)) for t in range(length)]
    assert torch.equal(run(case, again, **options), o) and torch.equal(bits(again.storage), bits(x.storage))


@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[3], *SHORT[:3]], ids=str)
def test_write_table(backend, case):
    """Stores go to another table, where a slot below min_slot or past the pool skips that store alone."""
    x = setup(case, backend.device, count=2 + 8 * case.N)
    write = table(case, backend.device, first=1 + 4 * case.N).clone()
    write[0, 0], write[1, 1], write[1, 0] = -1, 2**31 - 1, 0
    _, written = check(
        case,
        x,
        ssm_indices=table(case, backend.device),
        ssm_write_indices=write,
        num_accepted_tokens=accepted(case, backend.device),
        min_slot=1,
    )
    live = [write[n, t].item() for n, length in enumerate(lengths(case)) for t in range(length)]
    assert written == sorted(slot for slot in live if 1 <= slot < len(x.pool)) and len(written) < len(live)


@per_V
def test_tables_of_either_rank(backend, V):
    """Start from a column and store one final state; start from a slot and store every state; without accepted counts start
    from column 0; nothing stored."""
    case = Case("", V=V, B=2, T=3, raw=True, v_first=True)
    read, flat = table(case, backend.device), torch.tensor([9, 10], dtype=torch.int32, device=backend.device)
    fresh = lambda: setup(case, backend.device, count=11)  # noqa: E731
    counts = torch.tensor([4, 2], device=backend.device)
    assert check(case, fresh(), ssm_indices=read, num_accepted_tokens=counts, ssm_write_indices=flat)[1] == [9, 10]
    assert check(case, fresh(), ssm_indices=flat, ssm_write_indices=read)[1] == [1, 2, 3, 5, 6, 7]
    assert check(case, fresh(), ssm_indices=read)[1] == [1, 2, 3, 5, 6, 7]
    assert check(case, fresh(), ssm_indices=read, num_accepted_tokens=counts, update_state=False)[1] == []


@per_V
@pytest.mark.parametrize("counts", [(0, 1, 5), (-1, 4, 6), (2**31 - 1, 2, -(2**31))], ids=str)
def test_accepted_counts_outside_their_range(backend, counts, V):
    """Such a row is padding: zeros out, nothing read or written."""
    case = Case("", V=V, B=3, T=4, raw=True)
    x = setup(case, backend.device, count=13)
    x.q[0] = x.k[2] = float("nan")
    counts = torch.tensor(counts, device=backend.device)
    o, written = check(case, x, ssm_indices=table(case, backend.device), num_accepted_tokens=counts)
    assert written == [5, 6, 7, 8] and not o[0].any() and not o[2].any()


@per_V
@pytest.mark.parametrize("min_slot, start", [(0, -1), (1, 0), (0, 99)])
def test_padded_rows(backend, min_slot, start, V):
    """A row whose start column is no slot is padding, whatever its other columns hold."""
    case = Case("", V=V, lengths=(2, 3), after=1)
    x, slots = setup(case, backend.device, count=9), table(case, backend.device).clone()
    slots[0, 2] = start
    o, written = check(case, x, ssm_indices=slots, num_accepted_tokens=torch.tensor([3, 1], device=backend.device), min_slot=min_slot)
    assert written == [5, 6, 7] and not o[:, :2].any()


@per_V
@pytest.mark.parametrize("what", ["ssm_indices", "ssm_write_indices", "parents", "intermediate_states"])
def test_rows_longer_than_a_table(backend, what, V):
    """More tokens than columns, which only the device knows: the row is padding."""
    case = Case("", V=V, lengths=(2, 3, 1))
    x = setup(case, backend.device, [6, 7, 8], count=9)
    narrow = table(case, backend.device, columns=2, first=0)
    options = {what: narrow} if what != "parents" else {what: narrow * 0 - 1}
    if what == "intermediate_states":
        options = {what: with_steps(case, x, backend.device, 3, columns=2)}
    o, written, *_ = check(case, x, **options)
    assert not o[:, 2:5].any() and o[:, :2].any() and written == ([0, 1, 4] if what.startswith("ssm") else [6, 8])


@per_V
@pytest.mark.parametrize("v_first", [False, True])
def test_has_initial_state(backend, v_first, V):
    case = Case("", V=V, B=2, T=2, v_first=v_first)
    x, slots = setup(case, backend.device, count=9), table(case, backend.device)
    x.pool[2] = float("nan")
    flags = torch.tensor([False, True], device=backend.device)
    counts = torch.tensor([2, 1], device=backend.device)
    o, _ = check(case, x, ssm_indices=slots, num_accepted_tokens=counts, has_initial_state=flags)
    assert torch.isfinite(o.float()).all()


@pytest.mark.parametrize("accepted, want", [(1, 1.0), (2, 3.0), (3, 6.0), (4, 10.0)])
def test_accepted_drafts_count(backend, accepted, want):
    """Keys e0..e3 with values 1..4 are verified; the next token, of other keys, reads the sum of the accepted ones."""
    eye = torch.eye(64, dtype=BF16, device=backend.device)
    pool = torch.zeros(4, 1, 64, 16, device=backend.device)
    slots = torch.arange(4, device=backend.device)[None]
    verify = dict(k=eye[None, :4, None], v=torch.arange(1.0, 5, device=backend.device).to(BF16)[None, :, None, None].expand(1, 4, 1, 16))
    verify["v"] = verify["v"].contiguous()
    step = dict(k=eye[None, 9:10, None], v=torch.full((1, 1, 1, 16), 10.0, dtype=BF16, device=backend.device))
    for tokens, count in ((verify, 1), (step, accepted)):
        q = eye[:4].sum(0).expand_as(tokens["k"])
        g = torch.zeros(q.shape[:3], device=backend.device)
        o = gdn_ops.fused_recurrent_gated_delta_rule_update(
            q, tokens["k"], tokens["v"], g, None, None, None, None, None, pool, slots, scale=1.0,
            num_accepted_tokens=torch.tensor([count], device=backend.device),
        )  # fmt: skip
    assert o.flatten().tolist() == [want] * 16


@pytest.mark.parametrize(
    "case, kernel", [(Case("", V=64, T=16), "verify"), (Case("", V=64, T=17), ""), (Case("", T=16), ""), (Case("", V=64), "step")]
)
def test_kernel_by_size(case, kernel):
    """Square heads have a kernel for rows of up to 16 tokens, and one for single tokens of a plain step."""
    with Backend("interpreter") as backend:
        backend.count_only = True
        run(case, setup(case))
    assert [label.split("-")[0] for label in backend.launches] == ["fused_recurrent" + (kernel and f"_{kernel}")]


# ---- intermediate states -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case, steps", [(c, (FP32, BF16, FP16)[i % 3]) for i, c in enumerate(CASES)] + [(c, c.state) for c in CASES[4:6]], ids=str
)
def test_intermediate_states(backend, case, steps):
    """Every step's state, in any dtype, in slots of their own; a slot outside the buffer skips; the pool stays as it is."""
    x = setup(case, backend.device)
    buffer = with_steps(case, x, backend.device, case.N + 2, dtype=steps, gap=1 if case.T == 3 else 0)
    slots = torch.tensor([-1 if n == 2 else case.N + 1 - n for n in range(case.N)], dtype=case.index, device=backend.device)
    _, written, stored = check(case, x, intermediate_states=buffer, intermediate_indices=slots, update_state=False)
    want = [(case.N + 1 - n) * 4 + t for n, length in enumerate(lengths(case)) for t in range(length) if n != 2]
    assert written == [] and stored == sorted(want)


@per_V
def test_intermediate_states_and_the_pool(backend, V):
    """Both at once; slots past the buffer; rows are slots without intermediate_indices; padded rows store nothing."""
    case = Case("", V=V, B=3, T=2, v_first=True, state=BF16)
    x = setup(case, backend.device, [1, -1, 3])
    buffer = with_steps(case, x, backend.device, 3, columns=2, dtype=BF16)
    _, written, stored = check(case, x, intermediate_states=buffer)
    assert written == [1, 3] and stored == [0, 1, 4, 5]
    assert torch.equal(buffer[2, 1], x.pool[3]), "the last step's state is the final one"
    for slots in ([3, 0, 2**31], [0, 0, 1]):
        slots = torch.tensor(slots, device=backend.device)
        assert len(check(case, x, intermediate_states=buffer, intermediate_indices=slots)[2]) == 2 * ((slots[::2] < 3).sum().item())


@per_V
@pytest.mark.parametrize("v_first", [False, True])
def test_batch_does_not_matter(backend, v_first, V):
    """A row alone and among others, with everything at once: the same bits."""
    case = Case("", V=V, B=4, T=3, raw=True, v_first=v_first)
    x, alone = setup(case, backend.device, count=17), setup(case, backend.device, count=17)
    options = dict(ssm_indices=table(case, backend.device), num_accepted_tokens=accepted(case, backend.device))
    options |= dict(parents=torch.tensor([[-1, 0, 0], [0, 0, 1]] * 2, device=backend.device))
    buffers = [with_steps(case, x, backend.device, 4) for _ in range(2)]
    o = run(case, x, intermediate_states=buffers[0], **options)
    for n in (2, 0, 3, 1):
        row = {i: getattr(x, i)[n : n + 1] for i in ("q", "k", "v", "a", "b")} | {i: t[n : n + 1] for i, t in options.items()}
        assert torch.equal(run(case, alone, intermediate_states=buffers[1][n : n + 1], **row), o[n : n + 1])
    assert torch.equal(bits(alone.storage), bits(x.storage)) and torch.equal(*buffers)


# ---- refusals ----------------------------------------------------------------------------------------------------

CASE = Case("", T=3)
X = setup(CASE)
TABLE, COUNTS = table(CASE, "cpu"), torch.ones(2, dtype=torch.int32)
STEPS = with_steps(CASE, X, "cpu", 2)
REFUSALS = [
    (dict(ssm_indices=TABLE[:1]), r"ssm_indices: expected shape \[2, any\], got \[1, 4\]"),
    (dict(ssm_indices=TABLE[:, :2]), r"ssm_indices: expected a column for every token of a row, got \[2, 2\]"),
    (dict(ssm_indices=TABLE[:, :0]), "ssm_indices: expected a column for every token"),
    (dict(ssm_indices=TABLE[None]), r"ssm_indices: expected shape \[2\], got \[1, 2, 4\]"),
    (dict(ssm_indices=TABLE.float()), "ssm_indices: expected int32 or int64, got fp32"),
    (dict(ssm_write_indices=TABLE[:, :2]), r"ssm_write_indices: expected a column for every token of a row, got \[2, 2\]"),
    (dict(num_accepted_tokens=COUNTS), r"ssm_indices: expected two dimensions \[N, S \+ 1\] with num_accepted_tokens, got \[2\]"),
    (dict(ssm_indices=TABLE, num_accepted_tokens=COUNTS[:1]), r"num_accepted_tokens: expected shape \[2\], got \[1\]"),
    (dict(ssm_indices=TABLE, num_accepted_tokens=COUNTS.bool()), "num_accepted_tokens: expected int32 or int64, got bool"),
    (dict(intermediate_indices=COUNTS), "intermediate_indices: expected None without intermediate_states, got a tensor"),
    (dict(intermediate_states=STEPS, intermediate_indices=COUNTS[:1]), r"intermediate_indices: expected shape \[2\], got \[1\]"),
    (dict(intermediate_states=STEPS[:1]), r"intermediate_states: expected a slot for every row without intermediate_indices, got \[1, 4"),
    (dict(intermediate_states=STEPS[:, 0]), r"intermediate_states: expected shape \[any, any, 2, 64, 32\]"),
    (dict(intermediate_states=STEPS[:, :2]), r"intermediate_states: expected a column for every token of a row"),
    (dict(intermediate_states=STEPS.double()), "intermediate_states: expected fp32 or bf16 or fp16, got another dtype"),
    (dict(intermediate_states=STEPS.transpose(3, 4), state_v_first=True, ssm_pool=X.pool.mT.contiguous()), "intermediate_states: expected contiguous slots"),
    (dict(intermediate_states=STEPS.clone().requires_grad_()), "intermediate_states: expected no gradient"),
    (dict(parents=COUNTS), r"parents: expected shape \[2, any\], got \[2\]"),
    (dict(parents=TABLE[:, :2]), r"parents: expected a column for every token of a row, got \[2, 2\]"),
    (dict(parents=TABLE[:, :1].expand(2, 65)), "parents: expected at most 64 tokens a row, got 65"),
    (dict(parents=COUNTS, intermediate_indices=COUNTS), "intermediate_indices: expected .*; parents: expected"),
]  # fmt: skip


@pytest.mark.parametrize("changes, message", REFUSALS, ids=lambda x: x[:40] if isinstance(x, str) else "")
def test_refusals(changes, message):
    """Nothing is written, and the process lives on."""
    x = setup(CASE)
    before = x.storage.clone()
    with pytest.raises(RuntimeError, match=r"gdn\.fused_recurrent_gated_delta_rule_update: .*" + message):
        run(CASE, x, **changes)
    assert torch.equal(bits(x.storage), bits(before))
