"""Cases of the step ops: each on the outputs of the ones before it, compared with ``gdn_ops.reference`` on a prefix."""

import inspect

import inputs as I
import torch
import torch.nn.functional as F
from cases import Absent, Case, call, gdn, size
from inputs import GPU, HD, RAGGED

C = 64


def chain(lens: list[int], H: int, HV: int, upto: str) -> dict:
    """Inputs of step ``upto``: normalised q and k, cumulated gates, and what the earlier steps make of them."""
    x = I.prefill(lens, H, HV)
    x["q"], x["k"] = (F.normalize(x[n].float(), dim=-1).to(I.BF16) for n in "qk")
    x["cu_arg"] = x["cu"] if x["varlen"] else None
    x["NT"] = sum(-(-n // C) for n in lens)
    for op, outputs in (("chunk_local_cumsum", ["gc"]), ("chunk_scaled_dot_kkt", ["A"]), ("solve_tril", ["Ai"]),
                        ("recompute_w_u", ["w", "u"]), ("chunk_fwd_h", ["h", "v_new", "ht"])):  # fmt: skip
        if op == upto or (upto == "chunk_kkt_solve" and op == "chunk_scaled_dot_kkt"):
            break
        if not hasattr(gdn, op):
            raise Absent(f"no op {op} in this build to make the inputs")
        x.update(zip(outputs, listed(ours(op, x)())))
    if "h" in x:
        x["h_exact"] = x["h"][:, : x["NT"]].contiguous()
    return x


# op -> (arguments by name, marks of the outputs, flops of one chunk of one value head)
STEPS = {
    "chunk_local_cumsum": (dict(g="g"), (1e-5,), 0),
    "chunk_scaled_dot_kkt": (dict(k="k", g="gc", beta="beta"), (4e-3,), 2 * C * C * HD),
    "solve_tril": (dict(A="A"), (4e-3,), C**3 // 3),
    "chunk_kkt_solve": (dict(k="k", g="gc", beta="beta"), (1e-2,), 2 * C * C * HD + C**3 // 3),
    "recompute_w_u": (dict(k="k", v="v", beta="beta", A="Ai", g="gc"), (1e-2, 1e-2), 4 * C * C * HD),
    "chunk_fwd_h": (dict(k="k", w="w", u="u", g="gc", initial_state="h0"), (1e-2, 1e-2, 1e-2), 4 * C * HD * HD),
    "chunk_fwd_o": (dict(q="q", k="k", v="v_new", h="h", g="gc"), (1e-2,), 4 * C * C * HD + 2 * C * HD * HD),
}
FIXED = {"chunk_local_cumsum": dict(chunk_size=C), "solve_tril": dict(output_dtype=I.BF16), "chunk_fwd_h": dict(output_final_state=True)}


def arguments(op: str, x: dict) -> dict:
    """By name, cut to what the op's schema has."""
    args = {name: x[key] for name, key in STEPS[op][0].items()} | {"cu_seqlens": x["cu_arg"], **FIXED.get(op, {})}
    known = {a.name for a in getattr(gdn, op).default._schema.arguments}
    return {n: v for n, v in args.items() if n in known}


def listed(result) -> tuple:
    return result if isinstance(result, tuple) else (result,)


def ours(op: str, x: dict):
    return call(op, **arguments(op, x))


def truth(op: str, x: dict) -> tuple:
    """The reference on the first tokens: every step's first rows depend on the first tokens alone."""
    from gdn_ops import reference

    T = x["k"].shape[1]
    P = min(T, I.PREFIX)
    rows = sum(-(-n // C) for n in x["cu"].clamp(max=P).diff().tolist())  # chunks that start in the prefix
    args = {}
    for name, value in arguments(op, x).items():
        if name == "h":
            value = value[:, :rows] if P < T else value
        elif name == "cu_seqlens" and value is not None:
            value = value.clamp(max=P)
        elif isinstance(value, torch.Tensor) and value.dim() >= 3 and value.shape[1] == T and P < T:
            value = value[:, :P]
        args[name] = value
    function = getattr(reference, op)
    known = inspect.signature(function).parameters
    results = listed(function(**{n: v for n, v in args.items() if n in known}))
    if op != "chunk_fwd_h":
        return results
    return results[0][:, :rows], results[1], results[2] if P == T else None


def steps():
    shapes = [("1 x 1024", [1024]), ("1 x 16384", [16384]), ("16 ragged", RAGGED)]
    H, HV = 16, 32
    if not GPU:
        shapes, H, HV = [("1 x 130", [130]), ("4 ragged", [65, 1, 0, 40])], 2, 4
    for name, lens in shapes:
        for op, (args, marks, flops) in STEPS.items():
            yield Case(
                "steps", f"{op} {name}", op,
                inputs=lambda i, lens=lens, op=op: chain(lens, H, HV, op),
                ours=lambda x, op=op: ours(op, x), truth=lambda x, op=op: truth(op, x), marks=marks,
                nbytes=lambda x, op=op, args=args: size(*(x[k] for k in args.values()), *listed(ours(op, x)())),
                flops=flops * HV * sum(-(-n // C) for n in lens),
            )  # fmt: skip
