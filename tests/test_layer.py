"""A layer under torch.compile, export and AOTInductor: no graph break, no copied pool, the same numbers."""

import copy
import math
import re

import pytest
import torch
from harness import assert_close, seeded
from layer import Decode, GatedDeltaNet
from torch._inductor.utils import run_and_get_code

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield


def tokens(*shape, device="cpu", dtype=torch.float32):
    return torch.randn(*shape, generator=seeded(3)).to(device, dtype)


@pytest.mark.parametrize("device", DEVICES)
def test_compile_prefill(device):
    """fullgraph and dynamic: one graph for every length."""
    layer = GatedDeltaNet(dtype=torch.float32 if device == "cpu" else torch.bfloat16).to(device)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    counter = torch._dynamo.testing.CompileCounter()
    torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)(tokens(2, 70, 64, device=device, dtype=layer.conv.dtype))
    for T in (70, 65, 130):
        x = tokens(2, T, 64, device=device, dtype=layer.conv.dtype)
        for got, want in zip(compiled(x), layer(x)):
            assert_close(got, want, 1e-5 if device == "cpu" else 1e-2)
    assert counter.frame_count == 1


@pytest.mark.parametrize("device", DEVICES)
def test_compile_decode_updates_the_pools_in_place(device):
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    layer = GatedDeltaNet(dtype=dtype).to(device)
    other = copy.deepcopy(layer)
    compiled = torch.compile(layer.decode, fullgraph=True, dynamic=True)
    places = layer.pool.data_ptr(), layer.conv_states.data_ptr()
    for rows in ([3, -1, 1], [0, 3], [4, 2, 1, 3]):
        slots = torch.tensor(rows, dtype=torch.int32, device=device)
        x = tokens(len(rows), 64, device=device, dtype=dtype)
        assert_close(compiled(x, slots), other.decode(x, slots), 1e-5 if device == "cpu" else 1e-2)
    assert_close(layer.pool, other.pool, 1e-5 if device == "cpu" else 1e-2)
    assert_close(layer.conv_states, other.conv_states, 1e-5 if device == "cpu" else 1e-2)
    assert places == (layer.pool.data_ptr(), layer.conv_states.data_ptr())
    assert layer.pool.abs().sum() > 0


def allocations(function, *args) -> list[int]:
    """Elements of every buffer that Inductor's code for a function allocates."""
    _, (code, *_) = run_and_get_code(torch.compile(function, fullgraph=True), *args)
    shapes = re.findall(r"empty_strided_\w+\(\(([\d, ]+)\)", code)
    return [math.prod(int(n) for n in shape.split(",") if n.strip()) for shape in shapes]


def test_compiled_decode_copies_no_pool():
    """Inductor puts the mutating ops back in place, also for a pool that is a buffer of the module."""
    layer = GatedDeltaNet(slots=77)
    x, slots = tokens(2, 64), torch.tensor([3, 1], dtype=torch.int32)
    smallest = min(layer.pool.numel(), layer.conv_states.numel())
    assert max(allocations(layer.decode, x, slots)) < smallest

    def keeps_old_rows(x, slots):
        """What must not be written: rows gathered before the op and used after it. The pool is copied, and seen here."""
        before = layer.pool[slots.long()]
        return layer.decode(x, slots), before.sum()

    torch._dynamo.reset()
    assert max(allocations(keeps_old_rows, x, slots)) >= layer.pool.numel()


@pytest.mark.parametrize("device", DEVICES)
def test_export(device):
    """torch.export of prefill with any number of tokens, and of decode."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    layer = GatedDeltaNet(dtype=dtype).to(device)
    length = torch.export.Dim("T", min=2, max=4096)
    program = torch.export.export(layer, (tokens(1, 70, 64, device=device, dtype=dtype),), dynamic_shapes=({1: length},))
    targets = {str(n.target) for n in program.graph.nodes}
    assert "gdn.chunk_gated_delta_rule.default" in targets
    for T in (70, 2, 200):
        x = tokens(1, T, 64, device=device, dtype=dtype)
        for got, want in zip(program.module()(x), layer(x)):
            assert_close(got, want, 1e-6 if device == "cpu" else 1e-2)

    slots = torch.tensor([3, 1], dtype=torch.int32, device=device)
    program = torch.export.export(Decode(copy.deepcopy(layer)), (tokens(2, 64, device=device, dtype=dtype), slots))
    x = tokens(2, 64, device=device, dtype=dtype)
    assert_close(program.module()(x, slots), layer.decode(x, slots), 1e-6 if device == "cpu" else 1e-2)


@pytest.mark.parametrize("device", DEVICES)
def test_aot_inductor(device, tmp_path):
    """Exported, compiled to a package that needs no Python, loaded and run with another length."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    layer = GatedDeltaNet(dtype=dtype).to(device)
    length = torch.export.Dim("T", min=2, max=4096)
    program = torch.export.export(layer, (tokens(1, 70, 64, device=device, dtype=dtype),), dynamic_shapes=({1: length},))
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "layer.pt2"))
    run = torch._inductor.aoti_load_package(package)
    for T in (70, 131):
        x = tokens(1, T, 64, device=device, dtype=dtype)
        for got, want in zip(run(x), layer(x)):
            assert_close(got, want, 1e-5 if device == "cpu" else 1e-2)
