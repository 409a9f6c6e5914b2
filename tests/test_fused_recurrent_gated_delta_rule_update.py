from dataclasses import replace

import pytest
import torch
from harness import assert_close
from recurrent_cases import BF16, FP16, FP32, RMS, STATE, Case, arguments, bits, check, setup
from recurrent_cases import run_update as run

from gdn_ops import reference

CASES = [
    Case("raw-v-first", K=128, raw=True, v_first=True),
    Case("raw", K=128, H=2, HV=4, raw=True),
    Case("gates", B=4, index=torch.int32),
    Case("gates-v-first", B=4, v_first=True),
    Case("bf16-pool-v-first", K=128, state=BF16, v_first=True, raw=True, gates=BF16),
    Case("bf16-pool", K=128, state=BF16, raw=True),
    Case("fp16-pool", state=FP16, dtype=FP16, raw=True, gates=FP16),
    Case("fp16-pool-v-first", state=FP16, dtype=FP16, v_first=True),
    Case("fp32-activations", B=1, state=BF16, dtype=FP32, raw=True, v_first=True),
    Case("rows-of-tokens", B=3, T=4, raw=True, v_first=True),
    Case("packed", lengths=(0, 3, 1, 0), before=1, after=2, index=torch.int32, raw=True),
    Case("packed-v-first", lengths=(1, 2, 4), state=BF16, v_first=True),
    Case("ratio-3", H=2, HV=6, raw=True, v_first=True),
    Case("odd-sizes", K=48, V=20, raw=True, state=BF16),
    Case("odd-sizes-v-first", K=100, V=13, v_first=True, dtype=FP16),
    Case("largest", HV=1, B=1, K=256, V=256, raw=True, v_first=True),
    Case("no-rows", B=0),
    Case("no-tokens", T=0),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(backend, case):
    x = setup(case, backend.device, index=case.index)
    again = setup(case, backend.device, index=case.index)
    o, written = check(case, x)
    live = case.N if case.T else 0
    assert len(written) == (live if case.lengths is None else sum(length > 0 for length in case.lengths))
    if case.lengths is not None:
        assert not o[:, case.outside(backend.device)].any()
    assert torch.equal(run(case, again), o) and torch.equal(bits(again.storage), bits(x.storage))


# ---- padding and slots ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("v_first", [False, True])
def test_write_indices(backend, v_first):
    """The final state goes to another slot; a slot below min_slot or past the pool skips that store alone."""
    case = Case("", B=5, raw=True, v_first=v_first)
    x = setup(case, backend.device, [1, 2, -1, 3, 4])
    write = torch.tensor([5, -1, 6, 12, 4], dtype=torch.int32, device=backend.device)
    o, written = check(case, x, ssm_write_indices=write)
    assert written == [4, 5] and o[1].any() and o[3].any() and not o[2].any()


def test_pool_is_left_alone(backend):
    case = Case("", B=3, T=2)
    x = setup(case, backend.device, [2, 2, 0])  # only read: slots may repeat
    _, written = check(case, x, update_state=False)
    assert written == []


@pytest.mark.parametrize("has", [None, True, False])
def test_empty_sequence_keeps_its_slot(backend, has):
    case = Case("", lengths=(0, 2, 0), state=BF16)
    x = setup(case, backend.device)
    x.pool[x.slots[0]] = float("nan")
    flags = None if has is None else torch.tensor([has] * 3, device=backend.device)
    _, written = check(case, x, has_initial_state=flags)
    assert written == [3]


@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize("lengths", [None, (1, 2, 5)], ids=str)
def test_has_initial_state(backend, lengths, v_first):
    """A flag that is false is a state of exact zeros, whatever the slot holds; flags of any stride."""
    case = Case("", B=3, lengths=lengths, v_first=v_first)
    x, want = setup(case, backend.device), setup(case, backend.device)
    x.pool[x.slots[0]], x.pool[x.slots[2]] = float("nan"), float("inf")
    want.pool[want.slots[0]] = want.pool[want.slots[2]] = 0
    flags = torch.tensor([[False, True], [True, False], [False, True]], device=backend.device)[:, 0]
    o = run(case, x, has_initial_state=flags)
    assert torch.equal(o, run(case, want)) and torch.equal(bits(x.storage), bits(want.storage))


def check_large_batch(case, device):
    """A large batch takes another tile than its first rows alone: the same bits."""
    x, few = setup(case, device), setup(case, device)
    o = run(case, x)
    assert torch.equal(run(case, few, ssm_indices=few.slots[:2], **{n: getattr(x, n)[:2] for n in ("q", "k", "v", "a", "b")}), o[:2])
    assert torch.equal(x.pool[x.slots[:2]], few.pool[x.slots[:2]])
    want_o, want_pool, _ = reference.fused_recurrent_gated_delta_rule_update(**arguments(case, setup(case, device), {}))
    assert_close(o, want_o, RMS[BF16], what="o")
    assert_close(x.pool, want_pool, STATE[case.state], what="states")


def test_large_batch(backend):
    check_large_batch(Case("", B=16, HV=64, K=128, V=16, state=BF16, raw=True, v_first=True), backend.device)


@pytest.mark.gpu
def test_large_batch_in_fp32():
    check_large_batch(Case("", B=64, HV=64, K=128, V=16, raw=True, v_first=True), "cuda")


def test_tokens_of_a_row_are_steps(backend):
    case = Case("", T=3, raw=True, v_first=True)
    x, steps = setup(case, backend.device), setup(case, backend.device)
    o = run(case, x)
    for t in range(3):
        row = run(case, steps, **{n: getattr(x, n)[:, t : t + 1] for n in ("q", "k", "v", "a", "b")})
        assert_close(row, o[:, t : t + 1], RMS[BF16], what=f"token {t}")
    assert_close(steps.pool, x.pool, 1e-6, what="states")


# ---- views -------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("state, slots", [(BF16, [4095, 4096, 4097]), (FP32, [8192, 4096, 1])], ids=["4 GB", "17 GB"])
def test_large_pool(state, slots):
    """Slot times HV * K * V passes 2^31 (and 2^32): exactly the named slots change."""
    case = Case("", H=16, HV=32, K=128, V=128, B=3, state=state, raw=True, v_first=True)
    x = case.tokens("cuda")
    pool = torch.full((max(slots) + 3, 32, 128, 128), 0.5, dtype=state, device="cuda")
    pool[slots] = x.h0
    x.pool, x.slots = x.h0.clone(), torch.arange(3, device="cuda")
    o = run(case, x)
    assert torch.equal(run(case, x, ssm_pool=pool, ssm_indices=torch.tensor(slots, device="cuda")), o)
    assert torch.equal(pool[slots], x.pool)
    for n in {0, *(s % 4096 for s in slots), *(s + 1 for s in slots), *(s - 1 for s in slots)} - set(slots):
        assert (pool[n] == 0.5).all(), n


# ---- refusals ----------------------------------------------------------------------------------------------------

X = setup(Case("", H=2, HV=4, raw=True))
NEXT = torch.arange(2)
REFUSALS = [
    (dict(A_log=None, a=None, dt_bias=None, b=None), r"g: expected a tensor, or raw gates \(A_log, a, dt_bias, b\), got None"),
    (dict(b=None), "b: expected a tensor with the other raw gates .*, got None"),
    (dict(A_log=None, dt_bias=None), "A_log: expected .*; dt_bias: expected"),
    (dict(g=X.g), "g: expected None with raw gates .*, got a tensor"),
    (dict(beta=X.beta), "beta: expected None with raw gates"),
    (dict(a=X.a[:, 0]), r"a: expected shape \[2, 1, 4\], got \[2, 4\]"),
    (dict(A_log=X.A_log[:2]), r"A_log: expected shape \[4\], got \[2\]"),
    (dict(dt_bias=X.dt_bias.half()), "dt_bias: expected fp32 or bf16, got fp16"),
    (dict(ssm_pool=X.pool[:, :2]), r"ssm_pool: expected shape \[any, 4, 64, 32\], got \[6, 2, 64, 32\]"),
    (dict(ssm_pool=X.pool.transpose(-1, -2), state_v_first=True), r"ssm_pool: expected contiguous slots .*, got strides \[8192, 2048, 1, 32\]"),
    (dict(ssm_pool=X.pool[:1].expand(6, -1, -1, -1)), "ssm_pool: expected contiguous slots"),
    (dict(ssm_pool=X.pool[..., ::2].repeat_interleave(2, -1)[..., ::2], v=X.v[..., :16]), "ssm_pool: expected contiguous slots"),
    (dict(ssm_pool=X.pool.double()), "ssm_pool: expected fp32 or bf16 or fp16 or fp8_e4m3, got another dtype"),
    (dict(ssm_pool=X.pool.clone().requires_grad_()), "ssm_pool: expected no gradient"),
    (dict(ssm_indices=NEXT[:1]), r"ssm_indices: expected shape \[2\], got \[1\]"),
    (dict(ssm_indices=NEXT.float()), "ssm_indices: expected int32 or int64, got fp32"),
    (dict(ssm_write_indices=NEXT[:1]), r"ssm_write_indices: expected shape \[2\]"),
    (dict(has_initial_state=NEXT), "has_initial_state: expected bool, got int64"),
    (dict(has_initial_state=NEXT[:1].bool()), r"has_initial_state: expected shape \[2\]"),
    (dict(cu_seqlens=NEXT), "cu_seqlens: expected B = 1"),
    (dict(k=X.k[:, :, :1], parents=NEXT), "k: expected .*; parents: expected"),
]  # fmt: skip


@pytest.mark.parametrize("changes, message", REFUSALS, ids=lambda x: x[:40] if isinstance(x, str) else "")
def test_refusals(changes, message):
    """Nothing is written, and the process lives on."""
    case = replace(Case(""), H=2, HV=4, raw=True)
    x = setup(case)
    before = x.storage.clone()
    with pytest.raises(RuntimeError, match=r"gdn\.fused_recurrent_gated_delta_rule_update: .*" + message):
        run(case, x, **changes)
    assert torch.equal(bits(x.storage), bits(before))
