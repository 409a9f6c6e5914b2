"""Cases of a whole layer between its projections: decode, verify of drafts with the commit of what was accepted, prefill."""

import inputs as I
import layer_inputs as L
import torch
from cases import SILU, Case, call, layers_of, size
from inputs import BF16, GPU, HD, RAGGED, W

FP32 = torch.float32
PARAMETERS = ("conv_weight", "A_log", "dt_bias", "norm_weight")
BATCHES = (1, 8, 32, 64, 128, 256, 512)
# us, by state, heads and batch: targets.md
DECODE = {
    (FP32, 16, 32): {1: 4.5, 8: 11, 32: 36, 64: 70, 128: 138, 256: 272},
    (BF16, 16, 32): {1: 4.0, 32: 20, 64: 37, 256: 142},
    (FP32, 4, 8): {1: 4.0, 64: 20, 256: 70},
    (BF16, 4, 8): {},
}
OTHERS = ((16, 64), (16, 48), (2, 4), (16, 16))  # H / HV of other models, at a few batch sizes
VERIFY = {
    (FP32, 16, 32): {1: 6, 32: 45, 64: 85, 256: 330},
    (BF16, 16, 32): {64: 50},
    (BF16, 4, 8): {64: 17},
}
TOKENS = 4
# Marks of an fp32 state: in one launch, and where the convolution's result is rounded to bf16 before the rule.
EXACT, STATE = 1e-5, 1.5e-3


def label(state, H: int, HV: int, B: int) -> str:
    return f"{'fp32' if state == FP32 else 'bf16'} {H}/{HV} B {B}"


def moved(x: dict) -> float:
    """Bytes of one read of the rows and one write of the results."""
    return size(x["mixed_qkvz"], x["ba"]) + size(x["mixed_qkvz"]) * x["HV"] * HD / (x["D"] + x["HV"] * HD)


def arguments(x: dict, conv_states, pool) -> dict:
    args = {n: x[n] for n in ("mixed_qkvz", "ba", *PARAMETERS)} | dict(conv_bias=None, conv_states=conv_states, ssm_pool=pool)
    return args | dict(cache_indices=x["idx"], eps=I.EPS, activation=SILU, norm_activation=SILU, state_v_first=True)


# ---- decode ----------------------------------------------------------------------------------------------------


def step(x):
    conv_states, pool, slots, some = x["conv_states"].clone(), x["pool"].clone(), x["idx"].long()[x["some"]], x["some"]
    return call("gdn_decode", **arguments(x, conv_states, pool)), lambda y: (y[some], pool[slots], conv_states[slots])


def decode():
    heads = {k: v for k, v in DECODE.items()} | {(FP32, *h): {} for h in OTHERS}
    for (state, H, HV), goals in heads.items() if GPU else [((FP32, 2, 4), {}), ((BF16, 1, 4), {})]:
        batches = (3,) if not GPU else BATCHES if (state, H, HV) in DECODE else (1, 64, 256)
        for B in batches:
            one = 2 * B * HV * HD * HD * state.itemsize
            yield Case(
                "layer", label(state, H, HV, B), "gdn_decode",
                inputs=lambda i, B=B, H=H, HV=HV, s=state: L.decode(B, H, HV, s, i), ours=step, truth=L.decode_result,
                marks=(5e-3, (EXACT if GPU else STATE) if state == FP32 else 4e-3, 1e-6),
                nbytes=lambda x, one=one: one + 2 * size(x["conv_states"][1:]) + moved(x),
                layers=layers_of(one / 2, 256), goal=goals.get(B), peers=False,
            )  # fmt: skip


# ---- verify ----------------------------------------------------------------------------------------------------


def with_steps(x):
    """The pools are left as they are; states and windows after every token go to buffers."""
    B, T, some = x["B"], x["T"], x["some"]
    states, windows = x["pool"].new_empty(B, T, *x["pool"].shape[1:]), x["conv_states"].new_empty(B, T, x["D"], W - 1)
    kept = dict(intermediate_states=states, intermediate_windows=windows, update_state=False)
    return call("gdn_decode", **arguments(x, x["conv_states"], x["pool"]), **kept), lambda y: (y[some], states[some], windows[some])


def with_slots(x):
    """A slot for every token: the state after token t goes to column t, the convolution's line keeps all inputs."""
    B, T, D, some = x["B"], x["T"], x["D"], x["some"]
    slots = 1 + torch.arange(B * T, device=I.DEVICE, dtype=torch.int32).view(B, T)
    pool = x["pool"].new_zeros(B * T + 1, *x["pool"].shape[1:])
    pool[slots[:, 0].long()] = x["pool"][x["idx"].long()]
    lines = x["conv_states"].new_zeros(B + 1, D, W - 2 + T)
    lines[..., : W - 1] = x["conv_states"]
    accepted = torch.ones(B, device=I.DEVICE, dtype=torch.int32)
    run = call("gdn_decode", **arguments(x, lines, pool), ssm_indices=slots, num_accepted_tokens=accepted)
    rows = slots[some].long()
    return run, lambda y: (y[some], pool[rows], lines[x["idx"].long()[some]].unfold(2, W - 1, 1).transpose(1, 2))


def slots_result(x):
    """The line after a call is the last W - 2 inputs before it and its own: windows of all tokens."""
    return L.steps(x)


def commits(B: int, H: int, HV: int, state, layers: int):
    """States and windows of every layer, and how many tokens of each row were accepted."""
    r, D = I.randn(1), (2 * H + HV) * HD
    x = dict(layers=layers, idx=torch.arange(1, B + 1, device=I.DEVICE, dtype=torch.int32))
    x |= dict(
        accepted=(torch.arange(B, device=I.DEVICE) % TOKENS + 1).int(),
        pool=torch.zeros(layers, B + 1, HV, HD, HD, device=I.DEVICE, dtype=state),
    )
    x["states"] = torch.empty(layers, B, TOKENS, HV, HD, HD, device=I.DEVICE, dtype=state)
    for part in x["states"].view(-1, HV, HD, HD).split(64):
        part.copy_(r(*part.shape))
    x |= dict(conv=torch.zeros(layers, B + 1, D, W - 1, device=I.DEVICE, dtype=BF16), windows=r(layers, B, TOKENS, D, W - 1).to(BF16))
    return x


def commit(x):
    named = dict(ssm_indices=x["idx"], num_accepted_tokens=x["accepted"])
    states = call("scatter_accepted_states", pool=x["pool"], intermediate_states=x["states"], **named)
    windows = call("scatter_accepted_states", pool=x["conv"], intermediate_states=x["windows"], **named)
    return lambda: (states(), windows()), lambda _: (x["pool"][:, 1:], x["conv"][:, 1:])


def committed(x):
    rows, at = torch.arange(len(x["idx"]), device=I.DEVICE), x["accepted"].long() - 1
    return x["states"][:, rows, at], x["windows"][:, rows, at]


def verify():
    for (state, H, HV), goals in VERIFY.items() if GPU else [((FP32, 2, 4), {3: None})]:
        for B, goal in goals.items():
            one, name = B * HV * HD * HD * state.itemsize, label(state, H, HV, B)
            layers, mark = layers_of(one * (TOKENS + 1), 96), STATE if state == FP32 else 4e-3
            common = dict(
                inputs=lambda i, B=B, H=H, HV=HV, s=state: L.decode(B, H, HV, s, i, TOKENS), layers=layers, marks=(5e-3, mark, 1e-6), peers=False,
                nbytes=lambda x, one=one: (TOKENS + 1) * one + (TOKENS + 1) * size(x["conv_states"][1:]) + moved(x),
            )  # fmt: skip
            yield Case("verify", f"{name}, a slot a token", "gdn_decode", ours=with_slots, truth=slots_result, goal=goal, **common)
            yield Case("verify", f"{name}, states to buffers", "gdn_decode", ours=with_steps, truth=L.steps, goal=goal, **common)
            yield Case(
                "verify", f"{name}, their commit", "scatter_accepted_states", per=layers,
                inputs=lambda i, B=B, H=H, HV=HV, s=state, n=layers: commits(B, H, HV, s, n), ours=commit, truth=committed,
                marks=(0, 0), nbytes=lambda x: 2 * size(x["pool"][:, 1:], x["conv"][:, 1:]) / x["layers"], peers=False,
            )  # fmt: skip


# ---- prefill ---------------------------------------------------------------------------------------------------

PREFILL = (("1 x 1024", [1024], 65), ("1 x 4096", [4096], None), ("1 x 16384", [16384], 500), ("16 ragged", RAGGED, None))


def chunks(x):
    conv_states, pool = x["conv_states"].clone(), x["pool"].clone()
    args = arguments(x, conv_states, pool) | dict(has_initial_state=x["has"], cu_seqlens=x["cu"])
    slots = x["idx"].long()
    return call("gdn_prefill", **args), lambda y: (y[None], pool[slots])


def prefill():
    H, HV = (16, 32) if GPU else (1, 2)
    for name, lens, goal in PREFILL if GPU else (("1 x 90", [90], None), ("4 ragged", [65, 1, 0, 40], None)):
        T = sum(lens)
        yield Case(
            "layer_prefill", f"{name} ({H}/{HV})", "gdn_prefill",
            inputs=lambda i, lens=lens: L.prefill(lens, H, HV), ours=chunks, truth=lambda x, T=T: L.prefill_result(x, min(T, I.PREFIX)),
            marks=(1e-2, 1e-2), flops=164e3 * T * HV, goal=goal, peers=False,
            nbytes=lambda x: moved(x) + 2 * size(x["conv_states"][1:], x["pool"][1:]),
        )  # fmt: skip
