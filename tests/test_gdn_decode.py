"""A whole layer's decode and verify step against float64 and against the single ops, and the engines' flows."""

import pytest
import torch
from backends import Backend
from fresh import copy, same
from harness import assert_close
from sample_inputs import D, Draw
from samples_layer import LAYER, decode, rows, weights

import gdn_ops
from gdn_ops import reference

OP = torch.ops.gdn.gdn_decode
RMS = {torch.bfloat16: 8e-3, torch.float16: 2e-3, torch.float32: 1e-5}  # three roundings to the activation dtype
UPDATED = ("conv_states", "ssm_pool", "intermediate_states", "intermediate_windows")
SAMPLES = pytest.mark.parametrize("build", LAYER["gdn_decode"], ids=range(len(LAYER["gdn_decode"])))


def composed(mixed_qkvz, ba, conv_states, ssm_pool, cache_indices, conv_weight, conv_bias, A_log, dt_bias, norm_weight, interleaved=False,
             state_v_first=False, out_scale=None, cu_seqlens=None, ssm_indices=None, num_accepted_tokens=None, intermediate_states=None,
             intermediate_windows=None, intermediate_indices=None, parents=None, update_state=True, min_slot=0, pool_scale=None, rounding_seed=None):  # fmt: skip
    """The single ops, on copies of what a projection gives."""
    HV, (K, V) = len(A_log), ssm_pool.shape[:1:-1] if state_v_first else ssm_pool.shape[2:]
    H = (len(conv_weight) - HV * V) // (2 * K)
    lead = mixed_qkvz.shape[:-1]
    if ssm_indices is not None and ssm_indices.dim() == 1:
        ssm_indices = torch.where(cache_indices < min_slot, -1, ssm_indices)
    two_rows = (mixed_qkvz.flatten(0, -2), None if ba is None else ba.flatten(0, -2))
    qkv, z, b, a = gdn_ops.split_qkvzba(*two_rows, H, HV, K, V, interleaved)
    x = qkv.view(*lead, -1).mT if len(lead) == 2 else qkv
    y = gdn_ops.causal_conv1d_update(
        x, conv_states, conv_weight, conv_bias, 1, cache_indices, num_accepted_tokens, cu_seqlens, intermediate_windows,
        intermediate_indices, parents, min_slot,
    )  # fmt: skip
    y = (y.mT if len(lead) == 2 else y[None] if cu_seqlens is not None else y[:, None]).contiguous()
    q, k, v = (x.unflatten(2, (n, -1)) for x, n in zip(y.split([H * K, H * K, HV * V], 2), (H, H, HV)))
    o = gdn_ops.fused_recurrent_gated_delta_rule_update(
        q, k, v, None, None, A_log, a.view(*v.shape[:3]), dt_bias, b.view(*v.shape[:3]), ssm_pool,
        cache_indices if ssm_indices is None else ssm_indices, None, num_accepted_tokens, cu_seqlens, intermediate_states,
        intermediate_indices, parents, None, update_state, None, True, state_v_first, min_slot,
        pool_scale, rounding_seed,
    )  # fmt: skip
    return torch.ops.gdn.gated_rmsnorm(o.view(*lead, HV, V), norm_weight, z.view(*lead, HV, V), out_scale=out_scale)


def launches(args) -> int:
    """One for a plain step of one token a row of whole heads, for which a GPU has a kernel that rounds nothing between."""
    mixed, slots, (K, V) = args["mixed_qkvz"], args.get("ssm_indices"), args["ssm_pool"].shape[2:]
    more = {"cu_seqlens", "num_accepted_tokens", "intermediate_states", "intermediate_windows", "parents", "pool_scale", "rounding_seed"}
    one = (mixed.dim() == 2 or mixed.shape[1] == 1) and (slots is None or slots.dim() == 1) and not more & set(args)
    return 1 if one and args.get("update_state", True) and K == V == 128 and mixed.dtype != torch.float32 else 3


@SAMPLES
def test_values(backend, build):
    args = build(backend.device)
    if backend.name == "interpreter" and launches(args) > 1:
        pytest.skip("the single ops' kernels, which their own tests interpret")
    want_y, *want = reference.gdn_decode(**args)
    y = OP(**args)
    assert_close(y.float(), want_y, 4e-2 if y.dtype == torch.float8_e4m3fn else RMS[y.dtype], what="y")
    for name, w in zip(UPDATED, want):
        if name in args and args[name].dtype == torch.float8_e4m3fn:
            assert_close(args[name].float() * args["pool_scale"][:, None, None], w, 4e-2, what=name)
        elif name in args:
            assert_close(args[name], w, RMS[args["mixed_qkvz"].dtype], what=name)


@SAMPLES
def test_is_the_single_ops(native_backend, build):
    """Bit for bit, in results and in everything that is updated; but for what single ops round."""
    args = build(native_backend.device)
    theirs = copy(args)
    y, want = OP(**args), composed(**theirs)
    if native_backend.name == "cuda" and launches(args) == 1:
        dtype = args["mixed_qkvz"].dtype
        assert_close(y.float(), want.double(), 4e-2 if y.dtype == torch.float8_e4m3fn else RMS[dtype])
        assert_close(args["ssm_pool"], theirs["ssm_pool"].double(), RMS[dtype])
        assert same(args["conv_states"], theirs["conv_states"])
        return
    assert same(y, want)
    assert [n for n, t in args.items() if isinstance(t, torch.Tensor) and not same(t, theirs[n])] == []


@SAMPLES
def test_launches(build):
    args = build("cpu")
    with Backend("interpreter") as backend:
        backend.count_only = True
        OP(**args)
    assert len(backend.launches) == launches(args), backend.launches


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize("heads", [(1, 1), (2, 4), (1, 3), (1, 4), (1, 8)])
def test_one_launch(backend, heads, v_first, state):
    """Nothing but the stores rounds: a state is as near to float64 as fp32 sums are, whatever the activations' dtype."""
    (H, HV), K = heads, 128
    r, N, wide = Draw(backend.device, 5), 3, 2 * H * K + 2 * HV * K
    D = wide - HV * K
    dtype = torch.bfloat16 if state == torch.float32 else torch.float16
    args = dict(mixed_qkvz=r.normal(N, wide + 3, dtype=dtype)[:, 1 : wide + 1], ba=r.normal(N, 2 * HV, dtype=dtype))
    args |= dict(cache_indices=r.ints([4, 0, 2]))
    args |= dict(conv_states=r.normal(5, 3, D, dtype=torch.float32).mT, ssm_pool=r.normal(5, HV, K, K, scale=0.1).to(state))
    args |= dict(conv_weight=r.normal(D, 4, scale=0.5), conv_bias=r.normal(D), A_log=r.normal(HV), dt_bias=r.normal(HV))
    args |= dict(norm_weight=r.normal(K), state_v_first=v_first, ssm_write_indices=r.ints([3, 0, 2]), min_slot=1)
    before = copy(args)
    y_want, conv_want, pool_want, *_ = reference.gdn_decode(**args)
    y = OP(**args)
    assert_close(y.float(), y_want, 3e-3)
    exact = backend.name != "cpu"  # the twin is the single ops
    assert_close(args["ssm_pool"], pool_want, 3e-3 if state == torch.bfloat16 or not exact else 2e-6)
    assert_close(args["conv_states"], conv_want, 1e-7)
    assert not y[1].any() and same(args["ssm_pool"][:2], before["ssm_pool"][:2]) and same(args["ssm_pool"][4], before["ssm_pool"][4])


@pytest.mark.parametrize("taps", [4, 3])
@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("lines", ["packed", "channels last", "wide"])
def test_lines(backend, lines, start, taps):
    """However the histories lie, and wherever rows start: two channels at once or one by one."""
    H, HV, K, N, L = 1, 2, 128, 2, taps - 1
    r, D = Draw(backend.device, 7), (2 * H + HV) * K
    wide = D + HV * K

    def draw(*sizes, **options):
        return r.normal(*sizes, dtype=torch.bfloat16, **options)

    args = dict(mixed_qkvz=draw(N, wide + 2)[:, start : start + wide], ba=draw(N, 2 * HV), cache_indices=r.ints([2, 1]), conv_bias=None)
    history = draw(3, L, D).mT if lines == "channels last" else draw(3, D, L + 2 * (lines == "wide"))
    args |= dict(conv_states=history[..., :L], ssm_pool=r.normal(3, HV, K, K, scale=0.1, dtype=torch.float32))
    args |= dict(conv_weight=draw(D, taps, scale=0.5), A_log=draw(HV), dt_bias=draw(HV), norm_weight=draw(K))
    y_want, conv_want, pool_want, *_ = reference.gdn_decode(**args)
    y = OP(**args)
    exact = backend.name != "cpu"  # the twin is the single ops
    assert_close(y.float(), y_want, 3e-3 if exact else RMS[y.dtype])
    assert_close(args["ssm_pool"], pool_want, 2e-6 if exact else 3e-3)
    assert same(args["conv_states"], conv_want.to(torch.bfloat16))


@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize("flow", ["slots", "steps", "tree"])
@pytest.mark.parametrize("heads", [(2, 2), (1, 2), (1, 9)])
def test_rows_of_few_tokens(native_backend, heads, flow, v_first):
    """Packed rows, of which row 1 is empty and row 3 padding; filters of 3 taps."""
    (H, HV), K, W, S, lens = heads, 128, 3, 6, [5, 0, 1, 2, 6]
    r, N, T, wide = Draw(native_backend.device, 6), 5, sum(lens) + 2, 2 * H * K + 2 * HV * K
    D = wide - HV * K
    args = dict(mixed_qkvz=r.normal(T, wide + 3)[:, 1 : wide + 1], ba=r.normal(T, 2 * HV), cache_indices=r.ints([4, 2, 1, -1, 3]))
    args |= dict(cu_seqlens=r.ints([1, *(1 + torch.tensor(lens).cumsum(0)).tolist()]), state_v_first=v_first)
    args |= dict(conv_states=r.normal(5, W - 2 + S, D, dtype=torch.float32).mT, ssm_pool=r.normal(6 + N * S, HV, K, K, scale=0.1))
    args |= dict(conv_weight=r.normal(D, W, scale=0.5), conv_bias=r.normal(D), A_log=r.normal(HV), dt_bias=r.normal(HV))
    args |= dict(norm_weight=r.normal(K, dtype=torch.float32))
    if flow == "slots":
        args |= dict(ssm_indices=r.ints([[6 + n * S + t for t in range(S)] for n in range(N)]), num_accepted_tokens=r.ints([1, 2, 3, 4, 6]))
    else:
        args |= dict(intermediate_states=r.normal(N, S, HV, K, K), intermediate_windows=r.normal(N, S, D, W - 1, dtype=torch.float32))
        args |= dict(intermediate_indices=r.ints([4, 0, 1, 2, -1]), conv_states=args["conv_states"][..., : W - 1])
    if flow == "tree":
        args |= dict(parents=r.ints([[-1, 0, 0, 1, -1, 4], [0] * 6, [0] * 6, [0] * 6, [0, 0, 1, 2, 2, 0]]))
    y_want, *want = reference.gdn_decode(**args)
    y = OP(**args)
    assert_close(y.float(), y_want, RMS[y.dtype])
    for name, w in zip(UPDATED, want):
        if name in args:
            assert_close(args[name], w, 6e-3 if args[name].dim() > 4 or name == "ssm_pool" else 2e-6, what=name)


@pytest.mark.gpu
@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
def test_batch_invariance_of_kernels(state):
    """Many rows and few are cut differently."""
    args = decode((70,), state=state)("cuda")
    y, rows = OP(**copy(args)), ("mixed_qkvz", "ba", "cache_indices")
    for n in range(70):
        row = {k: t[n : n + 1] if k in rows else t for k, t in copy(args).items()}
        assert same(OP(**row), y[n : n + 1])


def test_row_longer_than_its_windows(backend):
    """Packed, so that only the device knows: the row is padding in both pools, and nothing is kept of it."""
    args = decode(lens=[1, 3, 2], flow="steps")(backend.device)
    args |= dict(intermediate_windows=args["intermediate_windows"][:, :2], cache_indices=args["cache_indices"].abs())
    padded = copy(args)
    padded["cache_indices"][1] = -1
    y_want, *want = reference.gdn_decode(**padded)
    y = OP(**args)
    assert_close(y, y_want, RMS[y.dtype], what="y")
    for name, w in zip(UPDATED, want):
        assert_close(args[name], w, RMS[y.dtype], what=name)
    slot = args["intermediate_indices"][1]
    assert not y[1:4].any() and all(same(args[name][slot], padded[name][slot]) for name in UPDATED[2:])


S = 4  # tokens of a verify step: the last accepted one and three drafts


def stream(device, interleaved, seed=3):
    """A layer in fp32, and rows of projections of one request."""
    r = Draw(device, seed)
    layer = weights(r, D, D, dtype=torch.float32, slots=2 * S + 3, extra=S - 1)
    return layer, rows(r, (1, 8 * S), D, D, torch.float32, interleaved)


def token_by_token(layer, x, accepted):
    """Float64 results of the accepted tokens, each step with another continuation of the same prefix."""
    state = {n: layer[n].detach().cpu().double() for n in ("conv_states", "ssm_pool")}
    shared = {n: t for n, t in layer.items() if n not in state} | dict(state_v_first=True, interleaved=x["interleaved"])
    conv, pool = state["conv_states"][1:2, :, :3].clone(), state["ssm_pool"][1:2].clone()
    results, at = [], 0
    for count in accepted:
        step = []
        after_conv, after_pool = conv, pool
        for t in range(S):
            row = dict(mixed_qkvz=x["mixed_qkvz"][0, at + t : at + t + 1].cpu(), ba=x["ba"][0, at + t : at + t + 1].cpu())
            y, after_conv, after_pool, *_ = reference.gdn_decode(
                **row, conv_states=after_conv, ssm_pool=after_pool, cache_indices=torch.tensor([0]), **{n: t.cpu() if isinstance(t, torch.Tensor) else t for n, t in shared.items()}
            )  # fmt: skip
            step.append(y[0])
            if t + 1 == count:
                conv, pool = after_conv, after_pool
        results.append(torch.stack(step))
        at += S
    return results, conv, pool


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("flow", ["slots", "steps"])
def test_verify_and_accept(backend, flow, interleaved):
    """Steps of S tokens of which 1, 2, ... S are accepted; the next starts after those. LightLLM's and vLLM's flow: a slot
    a token and wide convolution states, read by accepted count. SGLang's: states and windows of every step in buffers,
    what was accepted is copied to the frozen pools."""
    device = backend.device
    layer, x = stream(device, interleaved)
    accepted = [1, 3, 4, 2, 1, 4]
    want, want_conv, want_pool = token_by_token(layer, x, accepted)
    common = dict(state_v_first=True, interleaved=x["interleaved"], cache_indices=torch.tensor([1], device=device))
    pool, conv = layer["ssm_pool"], layer["conv_states"]
    last = 1  # before the first step, column 0 is the state
    if flow == "steps":
        layer["conv_states"] = conv = conv[..., :3].clone()
        states = torch.full((3, S, *pool.shape[1:]), float("nan"), device=device)
        windows = torch.full((3, S, *conv.shape[1:]), float("nan"), device=device)
        common |= dict(
            intermediate_states=states,
            intermediate_windows=windows,
            intermediate_indices=torch.tensor([2], device=device),
            update_state=False,
        )
    else:
        common |= dict(ssm_indices=torch.tensor([[1, 2, 3, 4]], device=device))
    for i, count in enumerate(accepted):
        step = {n: x[n][:, i * S : (i + 1) * S] for n in ("mixed_qkvz", "ba")}
        counts = torch.tensor([count], device=device)
        if flow == "slots":
            common |= dict(num_accepted_tokens=torch.tensor([last], device=device))
        y = OP(**step, **layer, **common)
        assert_close(y[0], want[i], 1e-5, what=f"step {i}")
        if flow == "steps":
            for pool_, kept in ((pool, states), (conv, windows)):
                gdn_ops.scatter_accepted_states(pool_, kept, common["cache_indices"], counts, common["intermediate_indices"], slot_dim=0)
        last = count
    if flow == "steps":
        assert_close(pool[1], want_pool[0], 1e-5, what="pool")
        assert_close(conv[1], want_conv[0], 1e-5, what="window")
    else:
        assert_close(pool[last], want_pool[0], 1e-5, what="pool")
        assert_close(conv[1, :, last - 1 : last + 2], want_conv[0], 1e-5, what="window")


REFUSALS = {
    "mixed_qkvz: expected rows": lambda x: dict(mixed_qkvz=x["mixed_qkvz"][..., :-1]),
    "mixed_qkvz: expected two dimensions": lambda x: dict(cu_seqlens=torch.tensor([0, 3, 7, 12])),
    "mixed_qkvz: expected rows evenly apart": lambda x: dict(mixed_qkvz=x["mixed_qkvz"][:, :3], ba=x["ba"][:, :3]),
    "ba: expected": lambda x: dict(ba=x["ba"][..., :-1]),
    "conv_weight: expected": lambda x: dict(conv_weight=x["conv_weight"][:-2]),
    "conv_bias: expected": lambda x: dict(conv_bias=torch.ones(3)),
    "ssm_pool: expected": lambda x: dict(ssm_pool=x["ssm_pool"].transpose(-1, -2)),
    "cache_indices: expected": lambda x: dict(cache_indices=x["cache_indices"][:-1]),
    "ssm_indices: expected": lambda x: dict(ssm_indices=x["ssm_indices"][:, :2]),
    r"ssm_indices: expected \[N, S \+ 1\] with num_accepted_tokens": lambda x: dict(ssm_indices=None),
    "num_accepted_tokens: expected": lambda x: dict(num_accepted_tokens=x["num_accepted_tokens"][:-1]),
    "intermediate_windows: expected with": lambda x: dict(intermediate_states=torch.zeros(3, 4, 4, D, D)),
    "intermediate_windows: expected a tensor with parents": lambda x: dict(parents=torch.zeros(3, 4, dtype=torch.int32)),
    "intermediate_windows: expected a tensor without update_state": lambda x: dict(update_state=False),
}


@pytest.mark.parametrize("text", REFUSALS)
def test_refusals(text):
    args = decode((3, 4), flow="slots")("cpu")
    args |= REFUSALS[text](args)
    before = copy(args)
    with pytest.raises(RuntimeError, match=f"gdn.gdn_decode: (.*; )?{text}"):
        OP(**args)
    assert all(same(t, before[n]) for n, t in args.items() if isinstance(t, torch.Tensor))
