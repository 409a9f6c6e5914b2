"""What the arguments of a call are, by name: tokens, rows, slots, offsets, pools. For tests that rearrange any op's calls."""

import functools
from dataclasses import dataclass

import torch
from fresh import copy, same
from samples import SAMPLES

from gdn_ops.table import OPS

OFFSETS = ("cu_seqlens", "query_start_loc")
# Of a layer or a call: neither tokens nor rows.
PARAMETERS = (
    "weight", "bias", "conv_weight", "conv_bias", "norm_weight", "A_log", "dt_bias", "out_scale", "pool_scale", "rounding_seed",
)  # fmt: skip
STATES = ("initial_state", "states", "h")  # not activations, of no pool
FLAGS = ("has_initial_state", "mask")
NUMBERS = ("num_accepted_tokens", "prefix_lens", "cache_seqlens", "parents", "seq_idx", "num_entries")  # of a row
# Slots, and the pools they are in; ssm_pool has those of ssm_indices where that is given.
SLOTS = {
    "ssm_indices": ("ssm_pool", "pool", "ring_k", "ring_u", "ring_g", "ring_lengths"), "ssm_write_indices": ("ssm_pool",), "cache_indices": ("conv_states", "ssm_pool"),
    "conv_state_indices": ("conv_state",), "indices": ("pool",), "src_indices": ("pool",), "dst_indices": ("pool",),
    "intermediate_indices": ("intermediate_states", "intermediate_windows"), "checkpoint_indices": ("checkpoints", "ssm_checkpoints", "conv_checkpoints"),
}  # fmt: skip
# A slot that is none skips one store; any other makes the row padding.
SKIPS = ("ssm_write_indices", "dst_indices", "intermediate_indices", "checkpoint_indices")
POOLS = tuple(dict.fromkeys(pool for pools in SLOTS.values() for pool in pools))


def poison(dtype: torch.dtype) -> float:
    return float("nan") if dtype.is_floating_point else 1 if dtype == torch.bool else 2**30


def bytes_of(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous().reshape(-1).view(torch.uint8)


@dataclass(frozen=True)
class Axis:
    """Along which dimension a tensor holds sequences: one element each ("row"), their tokens or their chunks."""

    kind: str
    dim: int


class Call:
    """A valid call of an op on a backend (tests/backends.py), and what its tensors are."""

    def __init__(self, op: str, kwargs: dict, backend: str):
        self.op, self.kwargs, self.backend = op, kwargs, backend
        self.outs = [n for n in OPS[op].out_args if n in self.tensors]  # a call of the form .out
        packet = getattr(torch.ops.gdn, op)
        arguments = (packet.out if self.outs else packet.default)._schema.arguments
        self.accepts = {a.name for a in arguments}
        self.mutated = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write and a.name in self.tensors]
        self.offsets = next((n for n in OFFSETS if n in self.tensors), None)
        self.slot_dim = kwargs.get("slot_dim", 0)
        own = {"ssm_pool"} if "ssm_indices" in self.tensors else set()
        self.slots = {
            n: [p for p in SLOTS[n] if p in self.tensors and (n != "cache_indices" or p not in own)] for n in SLOTS if n in self.tensors
        }
        self.shared = [p for p in POOLS if any(p in pools for pools in self.slots.values())]
        self.pools = [n for n in POOLS if n in self.tensors and (n in self.mutated or n in self.shared)]

    @functools.cached_property
    def tensors(self) -> dict:
        return {n: t for n, t in self.kwargs.items() if isinstance(t, torch.Tensor)}

    @functools.cached_property
    def bounds(self) -> list[int]:
        return self.tensors[self.offsets].tolist()

    @property
    def indices(self) -> list[str]:
        return [n for n in self.tensors if n in OFFSETS or n in NUMBERS or n in SLOTS]

    @property
    def activations(self) -> list[str]:
        """Activations and gates, results in place among them."""
        known = (*self.outs, *OFFSETS, *PARAMETERS, *STATES, *FLAGS, *NUMBERS, *SLOTS, *POOLS)
        return [n for n, t in self.tensors.items() if n not in known and t.is_floating_point()]

    @property
    def paddings(self) -> list[str]:
        """Slots without which a row is padding."""
        return [n for n in self.slots if n not in SKIPS]

    def axis(self, name: str) -> Axis | None:
        if name in self.outs:
            return self.result_axis(self.outs.index(name))
        if name in OFFSETS or name in PARAMETERS or name in self.shared or "seq_idx" in self.tensors:
            return None  # with seq_idx all tokens are one sequence
        if name in POOLS or name == "states":
            return Axis("row", self.slot_dim)
        if self.offsets is None or name in (*STATES, *FLAGS, *NUMBERS, *SLOTS):
            return Axis("chunk", 1) if name == "h" and self.offsets else Axis("row", 0)
        t = self.tensors[name]
        packed = t.dim() >= 3 and t.shape[0] == 1
        return Axis("token", int(packed or bool(self.kwargs.get("channels_first"))))

    def result_axis(self, i: int) -> Axis | None:
        out = OPS[self.op].outputs[i]
        if out.like:
            return Axis("row", self.slot_dim) if out.like in self.pools else self.axis(out.like)
        letters = out.shape.split()
        if self.offsets is None:
            return Axis("row", 0)
        if letters[0][0] == "*":  # the leading dimensions of an argument
            return self.axis(letters[0][1:])
        kind = {"T": "token", "NT": "chunk", "N": "row"}.get(letters[letters[0] == "B"])
        return Axis(kind, int(letters[0] == "B")) if kind else None

    @functools.cached_property
    def has_rows(self) -> bool:
        return self.rows is not None and any(t.is_floating_point() for t in self.tensors.values())

    @functools.cached_property
    def rows(self) -> int | None:
        """How many sequences."""
        if self.offsets:
            return len(self.bounds) - 1
        sizes = [t.shape[axis.dim] for n, t in self.tensors.items() if (axis := self.axis(n)) and n not in POOLS]
        return sizes[0] if sizes else None

    @property
    def token_count(self) -> int:
        return next(t.shape[a.dim] for n, t in self.tensors.items() if (a := self.axis(n)) and a.kind == "token")

    @property
    def columns(self) -> int:
        """The largest number of accepted tokens."""
        if "conv_state" in self.tensors:
            return self.tensors["conv_state"].shape[-1] - self.tensors["weight"].shape[-1] + 2
        if "ring_lengths" in self.tensors:
            return self.kwargs["tokens"]
        slots = self.tensors["ssm_indices"]
        return slots.shape[1] if slots.dim() == 2 else self.tensors["intermediate_states"].shape[self.slot_dim + 1]

    def lengths(self) -> list[int]:
        return [b - a for a, b in zip(self.bounds, self.bounds[1:])]

    def chunks(self) -> list[int]:
        C = self.kwargs.get("chunk_size", 64)
        return [-(-n // C) for n in self.lengths()]

    def part(self, axis: Axis, t: torch.Tensor, row: int) -> torch.Tensor:
        """What of a tensor belongs to a sequence."""
        if axis.kind == "row":
            return t.narrow(axis.dim, row, 1)
        if axis.kind == "token":
            return t.narrow(axis.dim, self.bounds[row], self.bounds[row + 1] - self.bounds[row])
        chunks = self.chunks()
        return t.narrow(axis.dim, sum(chunks[:row]), chunks[row])

    def with_nan(self, name: str, rows: list[int]) -> torch.Tensor:
        """A copy of an argument with NaN for these sequences."""
        t = self.tensors[name].clone(memory_format=torch.preserve_format)
        for r in rows:
            self.part(self.axis(name), t, r).fill_(float("nan"))
        return t

    def take(self, rows: list[int]) -> "Call":
        """The same call with some of its sequences, in any order; pools stay whole."""
        kwargs = dict(self.kwargs)
        if self.offsets:
            lengths = self.lengths()
            old = self.tensors[self.offsets]
            kwargs[self.offsets] = old.new_tensor([0, *(lengths[r] for r in rows)]).cumsum(0).to(old.dtype)
        for name, t in self.tensors.items():
            if (axis := self.axis(name)) is None or (axis.kind == "token" and not rows):
                continue
            parts = [self.part(axis, t, r) for r in rows]
            if axis.kind == "chunk":  # as many rows as there can be
                have = sum(p.shape[axis.dim] for p in parts)
                tokens = sum(self.lengths()[r] for r in rows)
                spare = -(-tokens // self.kwargs.get("chunk_size", 64)) + len(rows) - have
                parts.append(torch.full_like(t.narrow(axis.dim, 0, 1), float("nan")).repeat_interleave(spare, axis.dim))
            kwargs[name] = torch.cat(parts, axis.dim) if parts else t.narrow(axis.dim, 0, 0).clone()
        return Call(self.op, kwargs, self.backend)

    def slots_of(self, row: int, pool: str) -> list[int]:
        """The slots a sequence names."""
        size = self.tensors[pool].shape[self.slot_dim]
        if pool not in self.shared:
            return [row]
        first = self.kwargs.get("min_slot", 0)
        named = [s for n, pools in self.slots.items() if pool in pools for s in self.tensors[n][row].reshape(-1).tolist()]
        return sorted({s for s in named if first <= s < size})

    def unused(self, pool: str) -> list[int]:
        used = {s for r in range(self.rows) for s in self.slots_of(r, pool)}
        return [s for s in range(self.tensors[pool].shape[self.slot_dim]) if s not in used]

    def slot(self, t: torch.Tensor, slot: int) -> torch.Tensor:
        return t.select(self.slot_dim, slot)

    def run(self, **changes) -> dict:
        """Results by number and arguments by name, after a call on copies; tensors in ``changes`` are used as they are."""
        kwargs = copy({n: t for n, t in self.kwargs.items() if n not in changes}) | changes
        results = getattr(torch.ops.gdn, self.op)(**kwargs)
        results = list(results) if isinstance(results, tuple | list) else [] if results is None else [results]
        return dict(enumerate(results)) | {n: t for n, t in kwargs.items() if isinstance(t, torch.Tensor)}

    @functools.cached_property
    def base(self) -> dict:
        return self.run()

    def written(self) -> list:
        """What a call leaves: its results by number, and the arguments it changes by name."""
        return [*range(0 if self.outs else len(OPS[self.op].outputs)), *self.mutated]

    def axis_of(self, key) -> Axis | None:
        return self.axis(key) if isinstance(key, str) else self.result_axis(key)


def fill(t: torch.Tensor, slot_dim: int, slots: list[int]) -> torch.Tensor:
    """A copy with NaN, of bits no kernel makes (fp8 has one NaN of either sign), in these slots."""
    t = t.clone(memory_format=torch.preserve_format)
    odd = {1: 0x7F, 2: 0x7FD5, 4: 0x7FD55AA5}[t.element_size()]
    for s in slots:
        t.select(slot_dim, s).copy_(
            torch.tensor(odd, dtype={1: torch.int8, 2: torch.int16, 4: torch.int32}[t.element_size()], device=t.device).view(t.dtype)
        )
    return t


def with_out(op: str, kwargs: dict) -> dict:
    """Arguments of the form .out: these, and poison where the results go."""
    results = getattr(torch.ops.gdn, op)(**copy(kwargs))
    results = results if isinstance(results, tuple | list) else (results,)
    return kwargs | {n: torch.full_like(r, poison(r.dtype)) for n, r in zip(OPS[op].out_args, results, strict=True)}


@functools.cache
def calls(op: str, backend: str) -> list[Call]:
    samples = [builder("cuda" if backend == "cuda" else "cpu") for builder in SAMPLES[op]]
    return [Call(op, kwargs, backend) for kwargs in samples + ([with_out(op, samples[0])] if OPS[op].out else [])]


def assert_same(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    """Bit by bit."""
    if same(got, want):
        return
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    differ = (bytes_of(got) != bytes_of(want)).view(-1, got.element_size()).any(1).nonzero().reshape(-1)
    at = [int(i) for i in torch.unravel_index(differ[0], got.shape)]
    text = f"{got[tuple(at)].item()}, expected {want[tuple(at)].item()}"
    raise AssertionError(f"{what}: {len(differ)} of {got.numel()} elements differ, first at {at}: {text}")


def assert_zero(t: torch.Tensor, what: str) -> None:
    assert not t.numel() or not t.float().abs().max(), f"{what}: {t.float().abs().max()}, expected zeros"
