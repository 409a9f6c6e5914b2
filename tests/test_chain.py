"""Ops one after another, as a layer runs them: a prompt in one piece, in pieces, packed with others or token by token."""

import pytest
import torch
from harness import assert_close, seeded

import gdn_ops
from gdn_ops import reference

H, HV, K, W = 2, 4, 64, 4
SIZES = [H * K, H * K, HV * K]
D = sum(SIZES)
SILU = 1


def projections(T, device, dtype=torch.bfloat16):
    gen = seeded(7)
    x = dict(qkv=torch.randn(T, D, generator=gen), a=torch.randn(T, HV, generator=gen), b=torch.randn(T, HV, generator=gen))
    x = {n: t.to(dtype).to(device) for n, t in x.items()}
    x |= dict(weight=(torch.randn(D, W, generator=gen) * 0.5).to(dtype).to(device))
    return x | dict(A_log=torch.rand(HV, generator=gen).to(device), dt_bias=torch.randn(HV, generator=gen).to(device))


def split(y):
    return [t.unflatten(-1, (-1, K))[None] for t in y.split(SIZES, -1)]


def prefill(x, tokens, history, state, op, cu_seqlens=None):
    """Conv, gates and rule on some of the tokens, from a history [N, D, W - 1] (changed) and a state [N, HV, K, V]."""
    N = len(history)
    ends = torch.tensor([0, tokens.stop - tokens.start], device=history.device) if cu_seqlens is None else cu_seqlens
    slots, has = torch.arange(N, device=history.device), torch.ones(N, dtype=torch.bool, device=history.device)
    y = gdn_ops.causal_conv1d_fn(x["qkv"][tokens], x["weight"], None, history, ends, slots, has, SILU)
    g, beta = gdn_ops.fused_gdn_gating(x["A_log"], x["a"][tokens], x["b"][tokens], x["dt_bias"])
    return op(*split(y), g[None], beta[None], None, state, True, cu_seqlens, True)


def start(N, device):
    history = torch.randn(N, D, W - 1, generator=seeded(8)).bfloat16().to(device)
    return history, torch.randn(N, HV, K, K, generator=seeded(9)).mul(0.1).to(device)


OPS = [gdn_ops.chunk_gated_delta_rule, gdn_ops.fused_recurrent_gated_delta_rule]
by_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.__name__)


@by_op
@pytest.mark.parametrize("cut", [1, 2, 3, 63, 64, 65, 128, 199])
def test_one_prompt_in_two_pieces(native_backend, op, cut):
    x, T = projections(200, native_backend.device), 200
    history, state = start(1, native_backend.device)
    whole, final = prefill(x, slice(0, T), history.clone(), state, op)
    first, middle = prefill(x, slice(0, cut), history, state, op)
    second, last = prefill(x, slice(cut, T), history, middle, op)
    assert_close(torch.cat([first, second], 1), whole, 1e-2)
    assert_close(last, final, 1e-2)


@by_op
def test_token_by_token(native_backend, op):
    """Prefill of 130 tokens, and 130 decode steps on pools."""
    device, T = native_backend.device, 130
    x = projections(T, device)
    history, state = start(1, device)
    slots = torch.zeros(1, dtype=torch.int32, device=device)
    lines, pool, outputs = history.clone(), state.clone(), []
    for t in range(T):
        y = gdn_ops.causal_conv1d_update(x["qkv"][t : t + 1], lines, x["weight"], None, SILU, slots)
        raw = dict(A_log=x["A_log"], a=x["a"][None, t : t + 1], dt_bias=x["dt_bias"], b=x["b"][None, t : t + 1])
        options = dict(g=None, beta=None, ssm_pool=pool, ssm_indices=slots, use_qk_l2norm_in_kernel=True)
        outputs.append(gdn_ops.fused_recurrent_gated_delta_rule_update(*split(y), **raw, **options))
    o, final = prefill(x, slice(0, T), history, state, op)
    assert_close(torch.cat(outputs, 1), o, 1e-2)
    assert_close(pool, final, 1e-2)
    assert torch.equal(lines, history)


@by_op
def test_packed_prompts_do_not_meet(native_backend, op):
    """Each gives what it gives alone, and nothing of it depends on what the others hold."""
    device, lengths = native_backend.device, (5, 3, 1, 2, 64, 66)
    x, T = projections(sum(lengths), device), sum(lengths)
    cu = torch.tensor([0, *lengths], device=device).cumsum(0)
    history, state = start(len(lengths), device)
    lines = history.clone()
    o, final = prefill(x, slice(0, T), lines, state, op, cu)
    for n, (first, end) in enumerate(zip(cu.tolist(), cu.tolist()[1:])):
        line = history[n : n + 1].clone()
        alone = prefill(x, slice(first, end), line, state[n : n + 1], op)
        assert_close(o[:, first:end], alone[0], 1e-2, what=f"prompt {n}")
        assert_close(final[n : n + 1], alone[1], 1e-2, what=f"prompt {n}")
        assert torch.equal(lines[n : n + 1], line)
        others = {k: t.clone() for k, t in x.items()}
        for name in ("qkv", "a", "b"):
            others[name][:first], others[name][end:] = 100, -100
        other = prefill(others, slice(0, T), history.clone(), state, op, cu)
        assert torch.equal(other[0][:, first:end], o[:, first:end]) and torch.equal(other[1][n], final[n])


@pytest.mark.parametrize("lengths", [None, (65, 0, 1, 64, 30)], ids=["dense", "packed"])
def test_the_steps_are_the_whole(native_backend, lengths):
    """Cumsum, inverse, w and u, states, read-out: what chunk_gated_delta_rule computes, and float64 says so."""
    device, gen = native_backend.device, seeded(11)
    B, T = (2, 130) if lengths is None else (1, sum(lengths))
    cu = None if lengths is None else torch.tensor([0, *lengths], device=device).cumsum(0)
    q, k, v = (torch.randn(B, T, h, K, generator=gen).bfloat16().to(device) for h in (H, H, HV))
    g, beta = -torch.rand(B, T, HV, generator=gen).to(device), torch.rand(B, T, HV, generator=gen).to(device)
    state = torch.randn(B if lengths is None else len(lengths), HV, K, K, generator=gen).mul(0.1).to(device)
    q, k = gdn_ops.l2norm(q), gdn_ops.l2norm(k)
    G = gdn_ops.chunk_local_cumsum(g, 64, cu_seqlens=cu)
    A = gdn_ops.solve_tril(gdn_ops.chunk_scaled_dot_kkt(k, G, beta, cu), cu)
    assert_close(gdn_ops.chunk_kkt_solve(k, G, beta, cu), A, 5e-3, what="chunk_kkt_solve")
    w, u = gdn_ops.recompute_w_u(k, v, beta, A.to(k.dtype), G, cu)
    h, v_new, final = gdn_ops.chunk_fwd_h(k, w, u, G, state, True, cu_seqlens=cu)
    o = gdn_ops.chunk_fwd_o(q, k, v_new, h, G, cu_seqlens=cu)
    whole = gdn_ops.chunk_gated_delta_rule(q, k, v, g, beta, None, state, True, cu)
    exact = reference.gated_delta_rule(q, k, v, g, beta, None, state, cu)
    for name, got, other, want in zip(("o", "final state"), (o, final), whole, exact):
        assert_close(got, want, 1e-2, what=name)
        assert_close(other, want, 1e-2, what=name)


@by_op
@pytest.mark.parametrize("c, want", [(3e-5, 0.0299865), (1e-4, 0.0995037), (1e-3, 0.7071068), (1e-2, 0.9950372)])
def test_epsilon_of_the_norm_in_the_kernel(native_backend, op, c, want):
    """q and k with one element c: the state is k v^T with k = c / sqrt(c^2 + 1e-6)."""
    q = torch.zeros(1, 1, 1, K, device=native_backend.device, dtype=torch.bfloat16)
    q[..., 3] = c
    one = torch.ones(1, 1, 1, K, device=native_backend.device, dtype=torch.bfloat16)
    rounded = q[0, 0, 0, 3].double().item()
    want *= rounded / c * ((c * c + 1e-6) / (rounded**2 + 1e-6)) ** 0.5  # c is rounded to bf16
    _, state = op(q, q, one, None, None, None, None, True, None, True)
    assert state[0, 0, 3].tolist() == pytest.approx([want] * K, rel=5e-3)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_index_helpers_remember_nothing(native_backend, dtype):
    """Fresh offsets again and again at the same addresses, then one buffer overwritten in place: the plain definition."""
    device, gen, static = native_backend.device, seeded(13), torch.empty(9, dtype=dtype, device=native_backend.device)
    for i in range(200):
        lens = torch.randint(0, 513, (8,), generator=gen) * (torch.rand(8, generator=gen) < 0.9)
        cu = torch.cat([torch.zeros(1, dtype=dtype), lens.cumsum(0).to(dtype)])
        cu = static.copy_(cu) if i >= 100 else cu.to(device)
        total, counts = int(lens.sum()), [-(-n // 64) for n in lens.tolist()]
        pairs = [[n, j] for n, count in enumerate(counts) for j in range(count)]
        got = gdn_ops.prepare_chunk_indices(cu, 64, total).tolist()
        assert got[: len(pairs)] == pairs and all(row == [-1, -1] for row in got[len(pairs) :])
        assert gdn_ops.prepare_chunk_offsets(cu, 64).tolist() == torch.tensor([0, *counts]).cumsum(0).tolist()
        assert gdn_ops.prepare_lens(cu).tolist() == lens.tolist()
