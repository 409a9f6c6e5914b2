"""What is measured: one ``Case`` a row, in groups. Calls of ours come from ``torch.ops.gdn``; sizes shrink without a GPU."""

from collections.abc import Callable
from dataclasses import dataclass

import inputs as I
import torch
from inputs import GPU, HD, RAGGED

gdn = torch.ops.gdn
SILU = 1


class Absent(Exception):
    """This build lacks what a case needs."""


@dataclass(frozen=True)
class Case:
    """``inputs(i)`` makes the inputs of layer i; ``ours(x)`` a call on them and, where the call's results are not what is
    compared, a function from them to that.

    ``truth(x)`` is the float64 result of each (None: not compared; one with fewer tokens in dimension 1 is compared
    with that prefix). ``marks``: largest allowed RMS of the difference over RMS of the truth, for each. ``oracle``: a
    call to compare the whole of a long case with. ``layers`` > 1: timed in a graph over that many inputs. ``per``: one call
    does the work of so many layers, and is shown per layer.
    """

    group: str
    name: str
    op: str
    inputs: Callable[[int], dict]
    ours: Callable[[dict], Callable | tuple]
    truth: Callable[[dict], tuple]
    marks: tuple
    nbytes: Callable[[dict], float]
    flops: float = 0
    layers: int = 1
    per: int = 1
    oracle: Callable[[dict], Callable] | None = None
    goal: float | None = None
    peers: bool = True

    def has(self, words: str) -> bool:
        """Whether each of these words is in its group, name or op."""
        return all(word in f"{self.group} {self.name} {self.op}" for word in words.split())


def listed(result) -> tuple:
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def split(made):
    """A maker's answer as (call, function from its results to what is compared)."""
    return made if isinstance(made, tuple) else (made, listed)


def call(op: str, **named) -> Callable:
    """A call of an op without arguments: ``named`` in the order of its schema up to the last, as torch binds them fastest:
    a name costs more than the None before it, and an argument that is left out about as much as one that is given."""
    overload = getattr(gdn, op).default
    schema = overload._schema
    if unknown := set(named) - {a.name for a in schema.arguments}:
        raise TypeError(f"gdn.{op} has no argument {sorted(unknown)}")
    last = max(i for i, a in enumerate(schema.arguments) if a.name in named)
    args = [named.get(a.name, a.default_value) for a in schema.arguments[: last + 1]]
    return lambda: overload(*args)


def size(*tensors) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def layers_of(state: float, most: int) -> int:
    """So many layers that their states, of so many bytes each, do not stay in L2."""
    return max(2, min(most, int(400e6 / state) + 1)) if GPU else 2


# ---- prefill ---------------------------------------------------------------------------------------------------

PREFILL = (
    ("1 x 1024", [1024], 16, 32, 45), ("1 x 4096", [4096], 16, 32, 100), ("1 x 16384", [16384], 16, 32, 250),
    ("1 x 65536", [65536], 16, 32, 950), ("16 x 1024", [1024] * 16, 16, 32, 200), ("16 ragged", RAGGED, 16, 32, 230),
    ("1 x 8192", [8192], 4, 8, 80), ("1 x 8192", [8192], 16, 64, 280), ("1 x 8192", [8192], 16, 48, 250),
    ("1 x 32768", [32768], 2, 8, 150),
)  # fmt: skip


def rule(op: str):
    def make(x):
        cu = x["cu"] if x["varlen"] else None
        options = dict(initial_state=x["h0"], output_final_state=True, cu_seqlens=cu, use_qk_l2norm_in_kernel=True)
        return call(op, **{n: x[n] for n in ("q", "k", "v", "g", "beta")}, **options)

    return make


def prefill():
    for name, lens, H, HV, goal in PREFILL:
        if not GPU:
            lens, H, HV = [min(n, 130) for n in lens[:5]], max(1, H // 8), max(1, H // 8) * (HV // H)
        T = sum(lens)
        yield Case(
            "prefill", f"{name} ({H}/{HV})", "chunk_gated_delta_rule",
            inputs=lambda i, lens=lens, H=H, HV=HV: I.prefill(lens, H, HV),
            ours=rule("chunk_gated_delta_rule"), oracle=rule("fused_recurrent_gated_delta_rule"),
            truth=lambda x, T=T: I.delta_rule(x, min(T, I.PREFIX)), marks=(1e-2, 1e-2),
            nbytes=lambda x: size(x["q"], x["k"], x["v"], x["v"], x["g"], x["beta"]) + 2 * size(x["h0"]),
            flops=164e3 * T * HV, goal=goal,
        )  # fmt: skip


# ---- decode ----------------------------------------------------------------------------------------------------


def update(v_first: bool):
    def make(x):
        pool = x["pool"].transpose(-1, -2).contiguous() if v_first else x["pool"].clone()
        args = {n: x[n] for n in ("q", "k", "v", "A_log", "a", "dt_bias", "b")} | dict(g=None, beta=None)
        args |= dict(ssm_pool=pool, ssm_indices=x["idx"], use_qk_l2norm_in_kernel=True, state_v_first=v_first)
        run = call("fused_recurrent_gated_delta_rule_update", **args)
        return run, lambda o: (o, pool[1:].transpose(-1, -2) if v_first else pool[1:])

    return make


BATCHES = (1, 8, 32, 64, 128, 256, 512)
DECODE = ((16, 32, BATCHES), (4, 8, BATCHES), *((H, HV, (1, 64, 512)) for H, HV in ((16, 64), (16, 48), (2, 4), (16, 16))))


def decode():
    for state in (torch.float32, torch.bfloat16):
        for H, HV, batches in DECODE if GPU else ((2, 4, (3,)),):
            for B in batches:
                one = 2 * B * HV * HD * HD * state.itemsize
                for v_first in (False, True):
                    name = f"{'fp32' if state.itemsize == 4 else 'bf16'} {'VK' if v_first else 'KV'} {H}/{HV} B {B}"
                    yield Case(
                        "decode", name, "fused_recurrent_gated_delta_rule_update",
                        inputs=lambda i, B=B, H=H, HV=HV, s=state: I.decode(B, H, HV, s, i),
                        ours=update(v_first), truth=I.decode_step, marks=(4e-3, 1e-4 if state.itemsize == 4 else 4e-3),
                        nbytes=lambda x, one=one: one, layers=layers_of(one / 2, 24), peers=not v_first,
                    )  # fmt: skip


# ---- convolution -----------------------------------------------------------------------------------------------


def conv_fn(x):
    states = x["states"].clone()
    args = dict(conv_states=states, query_start_loc=x["cu"], cache_indices=x["idx"], has_initial_state=x["has"], activation=SILU)
    return call("causal_conv1d_fn", x=x["x"], weight=x["weight"], **args), lambda y: (y, states[x["idx"].long()])


def conv_step(x):
    states = x["states"].clone()
    args = dict(activation=SILU, conv_state_indices=x["idx"])
    return call("causal_conv1d_update", x=x["x"], conv_state=states, weight=x["weight"], **args), lambda y: (y, states[1:])


def conv_packed(x):
    """The step, and z, a and b beside the channels made contiguous."""
    states, B = x["states"].clone(), len(x["x"])
    D = x["x"].shape[1]
    HV = D // HD // 2  # of H = HV / 2 key heads
    z, b, a = x["beside"].split([HV * HD, HV, HV], 1)
    args = dict(mixed_qkv=x["x"], z=z.view(B, HV, HD), a=a, b=b, conv_states=states, weight=x["weight"], bias=None)
    args |= dict(cache_indices=x["idx"], activation=SILU, H=HV // 2, K=HD, HV=HV, V=HD)
    run = call("conv_pack_gdn_decode_inputs", **args)
    return run, lambda y: (torch.cat([t.flatten(1) for t in y[:3]], 1), states[1:], torch.cat([y[3].flatten(1), y[5], y[4]], 1))


def conv():
    D = 8192 if GPU else 512
    shapes = [(f"T {T}", [T]) for T in ((1024, 4096, 16384, 65536) if GPU else (70,))]
    for name, lens in [*shapes, ("16 ragged", RAGGED if GPU else [17, 1, 2, 3, 40])]:
        yield Case(
            "conv", f"fn {name}", "causal_conv1d_fn", lambda i, lens=lens: I.conv(lens, D), conv_fn, I.conv_result, (4e-3, 1e-6),
            nbytes=lambda x: 2 * size(x["x"], x["hist"]),
        )  # fmt: skip
    for B in (1, 32, 256) if GPU else (3,):
        one = lambda x: 2 * size(x["x"]) + 2 * size(x["states"][1:]) + size(x["weight"])  # noqa: E731
        yield Case(
            "conv", f"update B {B}", "causal_conv1d_update", lambda i, B=B: I.conv_step(B, D, i), conv_step,
            I.conv_step_result, (4e-3, 1e-6), nbytes=one, layers=24 if GPU else 2,
        )  # fmt: skip
        yield Case(
            "conv", f"pack B {B}", "conv_pack_gdn_decode_inputs", lambda i, B=B: I.conv_step(B, D, i), conv_packed,
            lambda x: (*I.conv_step_result(x), x["beside"]), (4e-3, 1e-6, 0), nbytes=lambda x, one=one: one(x) + 2 * size(x["beside"]),
            layers=24 if GPU else 2, peers=False,
        )  # fmt: skip


# ---- norms and gates -------------------------------------------------------------------------------------------


def norm():
    for T in (1024, 4096, 16384, 65536) if GPU else (70,):

        def make(i, T=T):  # noqa: E306
            return I.tokens(T, *((16, 32) if GPU else (2, 4)))

        yield Case(
            "norm", f"gating T {T}", "fused_gdn_gating", make,
            lambda x: call("fused_gdn_gating", **{n: x[n] for n in ("A_log", "a", "b", "dt_bias")}), I.gates, (1e-5, 1e-5),
            nbytes=lambda x: size(x["a"], x["b"]) * 3,
        )  # fmt: skip
        yield Case(
            "norm", f"gated_rmsnorm T {T}", "gated_rmsnorm", make,
            lambda x: call("gated_rmsnorm", x=x["o"], weight=x["weight"], z=x["z"], eps=I.EPS), I.gated_norm, (4e-3,),
            nbytes=lambda x: 3 * size(x["o"]),
        )  # fmt: skip
        yield Case(
            "norm", f"l2norm T {T}", "l2norm", make, lambda x: call("l2norm", x=x["q"]),
            lambda x: (x["q"].double() / torch.sqrt(x["q"].double().square().sum(-1, keepdim=True) + 1e-6),), (4e-3,),
            nbytes=lambda x: 2 * size(x["q"]),
        )  # fmt: skip


def groups() -> dict[str, Callable]:
    import layer
    import pool
    from rings import rings
    from steps import steps

    found = dict(prefill=prefill, decode=decode, ring=rings, layer=layer.decode, verify=layer.verify, layer_prefill=layer.prefill)
    return found | dict(packed=pool.packed_decode, update=pool.update, pool=pool.housekeeping, steps=steps, conv=conv, norm=norm)
