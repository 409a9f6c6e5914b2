"""Shapes and dtypes of every op for torch.compile, export and fake tensors, derived from the table's rows."""

from __future__ import annotations

import torch

from gdn_ops.spec import Op, Out
from gdn_ops.table import TABLE

_DTYPES = {"fp32": torch.float32, "i32": torch.int32, "i64": torch.int64, "fp8": torch.float8_e4m3fn}


def letters(op: Op, args: dict) -> dict:
    """Sizes by letter, from the arguments' shapes as the row spells them, and the derived ones (see ``Out``)."""
    found: dict = {}
    for name, spelled in op.shapes.items():
        names, tensor = spelled.split(), args.get(name)
        if tensor is None or "..." in names:
            continue
        if tensor.dim() != len(names):
            raise RuntimeError(f"gdn.{op.name}: {name}: expected {len(names)} dimensions [{spelled}], got {tuple(tensor.shape)}")
        for letter, size in zip(names, tensor.shape):
            found.setdefault(letter, size)
    found |= {name: value for name, value in args.items() if name.isupper() and isinstance(value, int | torch.SymInt)}
    cu_seqlens = args.get("cu_seqlens")
    if "total_tokens" in args:
        found["T"] = args["total_tokens"]
    if cu_seqlens is not None:
        found["N"] = cu_seqlens.shape[0] - 1
    elif "B" in found:
        found["N"] = found["B"]
    if "T" in found and "chunk_size" in args:
        found["C"] = args["chunk_size"]
        chunks = (found["T"] + found["C"] - 1) // found["C"]
        found["NT"] = chunks if cu_seqlens is None else chunks + found["N"]
    if "H" in found:
        found.setdefault("HV", found["H"])
    if "D" not in found and all(letter in found for letter in ("H", "HV", "K", "V")):
        found["D"] = 2 * found["H"] * found["K"] + found["HV"] * found["V"]
    if "K" in found and "V" in found:
        found["S0"], found["S1"] = ("V", "K") if args.get("state_v_first") else ("K", "V")
        found["S0"], found["S1"] = found[found["S0"]], found[found["S1"]]
    return found


def _output(out: Out, args: dict, sizes: dict, like: torch.Tensor) -> torch.Tensor:
    name = out.dtype(args) if callable(out.dtype) else out.dtype
    dtype = _DTYPES.get(name) or next((args[n] for n in name.split() if args[n] is not None), None)
    dtype = dtype.dtype if isinstance(dtype, torch.Tensor) else dtype
    model = args[out.like] if out.like else None
    if out.when and not args[out.when]:
        return torch.empty((0,), dtype=dtype or model.dtype, device=like.device)
    if model is not None:
        shape = list(model.shape)
        if out.resized is not None:
            dim, size = out.resized(args)
            shape[dim] = size
        if swapped := out.swapped is not None and out.swapped(args):
            shape[-2:] = shape[:-3:-1]
        new = torch.empty(shape, dtype=dtype or model.dtype, device=like.device)
        return new.mT if swapped else new
    shape = []
    for s in out.shape.split():
        shape += args[s[1:]].shape[:-1] if s[0] == "*" else [int(s) if s.isdigit() else sizes[s]]
    return torch.empty(shape, dtype=dtype, device=like.device)


def _fake(op: Op, overload: str = "default"):
    schema = getattr(getattr(torch.ops.gdn, op.name), overload)._schema

    def fake(*positional, **named):
        args = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
        args.update(zip((a.name for a in schema.arguments), positional))
        args.update(named)
        tensors = {n: t for n, t in args.items() if isinstance(t, torch.Tensor)}
        if torch.is_grad_enabled() and (bad := [n for n, t in tensors.items() if t.requires_grad]):
            raise RuntimeError(f"gdn.{op.name}: {', '.join(bad)}: expected no gradient (there is no backward), got requires_grad=True")
        if overload == "out":
            return None
        like = next(iter(tensors.values()))
        sizes = letters(op, args)
        results = tuple(_output(out, args, sizes, like) for out in op.outputs)
        return results[0] if len(results) == 1 else results or None

    return fake


def register() -> None:
    """Registers the fake implementation of every op."""
    for op in TABLE:
        torch.library.register_fake(f"gdn::{op.name}", _fake(op))
        if op.out:
            torch.library.register_fake(f"gdn::{op.name}.out", _fake(op, "out"))
