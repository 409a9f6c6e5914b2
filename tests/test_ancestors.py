"""Faults found in the kernels these descend from, each made impossible. ``initial_state=None`` that costs memory traffic is
in test_cuda_runtime, as is a guard that leaves the wrong device current."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from harness import assert_close, seeded
from samples import SAMPLES

import gdn_ops
from gdn_ops import reference
from gdn_ops.table import OPS

RULES = [gdn_ops.chunk_gated_delta_rule, gdn_ops.fused_recurrent_gated_delta_rule]
by_rule = pytest.mark.parametrize("op", RULES, ids=lambda op: op.__name__)


def tokens(device, T=70, H=2, HV=4, K=64):
    gen = seeded(21)
    q, k, v = (torch.randn(1, T, h, K, generator=gen).bfloat16().to(device) for h in (H, H, HV))
    return q, k, v, -torch.rand(1, T, HV, generator=gen).to(device), torch.rand(1, T, HV, generator=gen).to(device)


@pytest.mark.parametrize("op", OPS)
def test_a_tensor_left_out_is_refused_by_name(op):
    """A pool or indices, say: torch itself takes None for a tensor."""
    kwargs, schema = SAMPLES[op][0]("cpu"), getattr(torch.ops.gdn, op).default._schema
    needed = [a.name for a in schema.arguments if str(a.type) == "Tensor"]
    for name in needed:
        with pytest.raises(RuntimeError, match=name):
            getattr(torch.ops.gdn, op)(**{n: x for n, x in kwargs.items() if n != name})
        if len(needed) > 1:
            with pytest.raises(RuntimeError, match=rf"gdn\.{op}: (.*; )?{name}: expected .*, got None"):
                getattr(torch.ops.gdn, op)(**kwargs | {name: None})


def test_conv_slots_without_states_are_refused():
    kwargs = SAMPLES["causal_conv1d_fn"][0]("cpu")
    with pytest.raises(RuntimeError, match=r"gdn\.causal_conv1d_fn: .*conv_states"):
        torch.ops.gdn.causal_conv1d_fn(**kwargs | {"conv_states": None})


@by_rule
def test_beta_is_sized_by_value_heads(native_backend, op):
    q, k, v, g, beta = tokens(native_backend.device)
    run = lambda beta: op(q, k, v, g, beta, None, None, True, None, True)  # noqa: E731
    for got, want in zip(run(None), run(torch.ones_like(beta))):
        assert torch.equal(got, want)
    for wrong in (beta[..., :2], beta[:, :-1], beta[0]):
        with pytest.raises(RuntimeError, match=r"beta: expected shape \[1, 70, 4\], got"):
            op(q, k, v, g, wrong)


@by_rule
@pytest.mark.parametrize("v_first", [False, True])
def test_no_initial_state_with_more_sequences_than_rows(native_backend, op, v_first):
    """B is 1 and N is 40: without an initial state every sequence starts from its own zeros, and none is read."""
    q, k, v, g, beta = tokens(native_backend.device, T=80)
    cu = torch.arange(0, 81, 2, device=native_backend.device)
    without = op(q, k, v, g, beta, None, None, True, cu, False, v_first)
    zeros = torch.zeros(40, 4, 64, 64, device=native_backend.device)
    for got, same, want in zip(
        without,
        op(q, k, v, g, beta, None, zeros, True, cu, False, v_first),
        reference.gated_delta_rule(q, k, v, g, beta, cu_seqlens=cu, state_v_first=v_first),
    ):
        assert torch.equal(got, same)
        assert_close(got, want, 1e-2)


@pytest.mark.parametrize("B", [None, 2])
def test_a_layout_is_said_and_checked(native_backend, B):
    """Channel-last x and its channel-first transpose give the same numbers; the wrong word for a layout is refused."""
    x = torch.randn(*((B,) if B else ()), 50, 66, generator=seeded(22)).to(native_backend.device)
    weight = torch.randn(66, 4, generator=seeded(23)).to(native_backend.device)
    y = gdn_ops.causal_conv1d_fn(x, weight)
    assert_close(gdn_ops.causal_conv1d_fn(x.mT, weight, channels_first=True).mT, y, 1e-6)
    assert_close(gdn_ops.causal_conv1d_fn(x.mT.contiguous(), weight, channels_first=True).mT, y, 1e-6)
    for wrong in (x.mT, x.mT.contiguous()):
        with pytest.raises(RuntimeError, match=r"gdn\.causal_conv1d_fn: .*(weight|x): expected"):
            gdn_ops.causal_conv1d_fn(wrong, weight)
    with pytest.raises(RuntimeError, match=r"gdn\.causal_conv1d_fn: .*(weight|x): expected"):
        gdn_ops.causal_conv1d_fn(x, weight, channels_first=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_cumulated_gates_are_fp32(native_backend, dtype):
    """Gates of 0.1 .. 16 in bf16 add up to hundreds, where bf16 has steps of 2 and more."""
    g = -torch.linspace(0.1, 16, 128).to(dtype)[None, :, None].to(native_backend.device)
    G = gdn_ops.chunk_local_cumsum(g, 64)
    assert G.dtype == torch.float32
    want = g.double().view(2, 64).cumsum(1).view(1, 128, 1)
    assert_close(G, want, 1e-6)


def test_gpu_tests_skip_without_a_gpu():
    """All of them, and none fails."""
    here = Path(__file__).parent
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "gpu",
        "-p",
        "no:cacheprovider",
        *map(str, here.glob("test_cuda_*.py")),
        str(here / "test_l2norm.py"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, cwd=here)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "skipped" in done.stdout and "passed" not in done.stdout and "failed" not in done.stdout
