"""Hugging Face transformers on gdn_ops.

    from gdn_ops.compat import transformers as gdn_transformers

    gdn_transformers.patch(model)          # until unpatch()
    with gdn_transformers.patched(model):  # or for a while
        model.generate(...)

The Gated DeltaNet layers of transformers (Qwen3-Next, Qwen3.5, Qwen3.5-MoE, OLMo-Hybrid) look their functions up as
names of their modelling module, and their gated norm as a class of it. ``patch`` puts gdn_ops behind those names, so it
holds for every model of these modules in the process. The functions here have transformers' arguments and conventions
(KV states, convolution state ``[B, D, W]`` whose whole line shifts, activations by name) and run on CPU and CUDA.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import torch

import gdn_ops

FAMILIES = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen4_exp", "olmo_hybrid")
ACTIVATIONS = {None: gdn_ops.NONE, "silu": gdn_ops.SILU, "swish": gdn_ops.SILU, "sigmoid": gdn_ops.SIGMOID}

_originals: dict[tuple[object, str], object] = {}


def _activation(name: str | None) -> int:
    if name not in ACTIVATIONS:
        raise ValueError(f"gdn_ops.compat.transformers: activation: expected one of {list(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name]


def _unit_stride(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Copies what was sliced out of channel-major memory (never the case when the convolution is routed here too)."""
    return tuple(t if t.stride(-1) == 1 else t.contiguous() for t in tensors)


def _gated_delta_rule(op, query, key, value, g, beta, initial_state, output_final_state, use_qk_l2norm_in_kernel, cu_seqlens):
    query, key, value = _unit_stride(query, key, value)
    o, state = op(
        query,
        key,
        value,
        g,
        beta,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
    )
    return o, state if output_final_state else None


def chunk_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    chunk_size: int = 64,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    **kwargs,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Prefill. float32 activations on CUDA, which the chunk kernels refuse, take the token loop."""
    loop = query.is_cuda and query.dtype == torch.float32
    op = gdn_ops.fused_recurrent_gated_delta_rule if loop else gdn_ops.chunk_gated_delta_rule
    return _gated_delta_rule(op, query, key, value, g, beta, initial_state, output_final_state, use_qk_l2norm_in_kernel, cu_seqlens)


def recurrent_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    **kwargs,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Decode, token by token."""
    op = gdn_ops.fused_recurrent_gated_delta_rule
    return _gated_delta_rule(op, query, key, value, g, beta, initial_state, output_final_state, use_qk_l2norm_in_kernel, cu_seqlens)


def causal_conv1d_fn(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    seq_idx: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    **kwargs,
) -> torch.Tensor:
    """``hidden_states [B, D, T]``, or ``[1, D, T]`` of packed sequences with their offsets. The result has the same shape
    over token-major memory, as the layer goes on with."""
    x, activation = hidden_states.transpose(1, 2), _activation(activation)
    if cu_seq_lens_q is not None:
        y = gdn_ops.causal_conv1d_fn(x.squeeze(0), weight, bias, query_start_loc=cu_seq_lens_q, activation=activation).unsqueeze(0)
    else:
        y = gdn_ops.causal_conv1d_fn(x, weight, bias, activation=activation, seq_idx=seq_idx)
    return y.transpose(1, 2)


def causal_conv1d_update(
    hidden_states: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
) -> torch.Tensor:
    """``hidden_states [B, D, 1]``, ``conv_state [B, D, W]`` shifted in place."""
    y = gdn_ops.causal_conv1d_update(hidden_states.squeeze(-1), conv_state, weight, bias, activation=_activation(activation))
    return y.unsqueeze(-1)


def rmsnorm_gated(self, hidden_states: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
    """``forward`` of the gated norm, with its rounding to the activation dtype before the weight."""
    activation = _activation(getattr(self, "activation", "silu"))
    return gdn_ops.gated_rmsnorm(hidden_states, self.weight, gate, eps=self.variance_epsilon, activation=activation, hf_rounding=True)


FUNCTIONS = {
    "torch_chunk_gated_delta_rule": chunk_gated_delta_rule,
    "torch_recurrent_gated_delta_rule": recurrent_gated_delta_rule,
    "causal_conv1d_fn": causal_conv1d_fn,
    "causal_conv1d_update": causal_conv1d_update,
}


def _modules(model: torch.nn.Module | None) -> list[ModuleType]:
    if model is not None:
        names = {type(m).__module__ for m in model.modules() if hasattr(m, "A_log") and hasattr(m, "dt_bias")}
        return [sys.modules[name] for name in sorted(names) if hasattr(sys.modules[name], "torch_chunk_gated_delta_rule")]
    found = []
    for family in FAMILIES:
        with contextlib.suppress(ModuleNotFoundError):  # not in this release of transformers
            found.append(importlib.import_module(f"transformers.models.{family}.modeling_{family}"))
    return found


def places(model: torch.nn.Module | None = None) -> list[tuple[object, str, object]]:
    """``(owner, name, function)`` of everything that ``patch`` replaces.

    Raises:
        ValueError: the model has no Gated DeltaNet layer of transformers, or transformers has none.
    """
    found: list[tuple[object, str, object]] = []
    for module in _modules(model):
        found += [(module, name, function) for name, function in FUNCTIONS.items() if hasattr(module, name)]
        norms = [c for n, c in vars(module).items() if n.endswith("RMSNormGated") and c.__module__ == module.__name__]
        found += [(norm, "forward", rmsnorm_gated) for norm in norms]
    if not found:
        what = "this transformers" if model is None else type(model).__name__
        raise ValueError(f"gdn_ops.compat.transformers: no Gated DeltaNet layers known here in {what}")
    return found


def patch(model: torch.nn.Module | None = None) -> list[tuple[object, str]]:
    """Routes the Gated DeltaNet functions of a model's modelling module (or of all known ones) to gdn_ops.

    Returns what was replaced by this call; what was routed before is left alone. Inference only: under autograd the ops
    refuse tensors that require a gradient.

    Raises:
        ValueError: nothing to route.
    """
    new = []
    for owner, name, function in places(model):
        if (owner, name) not in _originals:
            _originals[owner, name] = getattr(owner, name)
            setattr(owner, name, function)
            new.append((owner, name))
    return new


def unpatch(what: list[tuple[object, str]] | None = None) -> None:
    """Puts transformers' own functions back: all of them, or those that one ``patch`` returned."""
    for owner, name in list(_originals) if what is None else what:
        setattr(owner, name, _originals.pop((owner, name)))


@contextlib.contextmanager
def patched(model: torch.nn.Module | None = None) -> Iterator[None]:
    """``patch`` for a while; leaves in place what was routed before."""
    new = patch(model)
    try:
        yield
    finally:
        unpatch([place for place in new if place in _originals])
