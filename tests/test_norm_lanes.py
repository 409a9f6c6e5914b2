"""The norms' ALIGNED variants: when they are taken, that they move 16 bytes at a time, and rows beyond a block's first tile."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from backends import Backend
from harness import assert_close, guarded, seeded

import gdn_ops
from gdn_ops import reference
from gdn_ops.table import KERNELS

ROOT = Path(__file__).resolve().parent.parent
BF16 = torch.bfloat16
RMS = 2.5e-3  # rounding of a bf16 output


def randn(seed, *shape, dtype=BF16, device="cpu"):
    return guarded(torch.randn(*shape, generator=seeded(seed)).to(dtype), device)


LAYOUTS = {  # x from rows [4, 1024], and whether it lies on 16 bytes
    "contiguous": (lambda row: row[:, :512].contiguous().unflatten(-1, (4, 128)), True),
    "columns": (lambda row: row[:, 16:528].unflatten(-1, (4, 128)), True),
    "transposed": (lambda row: row[:, :512].unflatten(-1, (4, 128)).transpose(0, 1), True),
    "lanes left over": (lambda row: row[:, :384].unflatten(-1, (4, 96)), True),
    "8 columns": (lambda row: row[:, :16].unflatten(-1, (1, 16))[..., :8], True),
    "half a line off": (lambda row: row[:, 1:513].unflatten(-1, (4, 128)), False),
    "no whole packs": (lambda row: row[:, :400].unflatten(-1, (4, 100)), False),
    "wider than a warp": (lambda row: row.unflatten(-1, (2, 512)), False),
}


@pytest.mark.parametrize("dtype", [BF16, torch.float32], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_variant(layout, dtype):
    make, whole = LAYOUTS[layout]
    x = make(torch.zeros(4, 1024, dtype=dtype))
    w = torch.ones(x.shape[-1])
    with Backend("interpreter") as backend:
        backend.count_only = True
        gdn_ops.l2norm(x)
        gdn_ops.gated_rmsnorm(x, w, x)
        gdn_ops.gated_rmsnorm(x, w, x, out_scale=w[:1])
        gdn_ops.gated_rmsnorm_fp8(x, w, x)
    assert [int(label.endswith("ALIGNED.1")) for label in backend.launches] == [whole] * 4, backend.launches


@pytest.mark.parametrize("name", ["l2norm", "gated_rmsnorm"])
def test_wide_accesses(name, tmp_path):
    """In the machine code for sm_90: no access of an ALIGNED variant is narrower than 16 bytes, but for fp8 results (8) and scales."""
    triton = pytest.importorskip("triton")
    sys.path.insert(0, str(ROOT))
    try:
        cubin = importlib.import_module("tools.cubin")
    finally:
        sys.path.remove(str(ROOT))
    kernel = KERNELS[name]
    try:
        image, metas = cubin.compile_cuda(kernel, 90)
    except (StopIteration, SystemExit) as error:
        pytest.skip(f"no NVRTC: {error}")
    image_file = tmp_path / "kernel.cubin"
    image_file.write_bytes(image)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    functions = re.split(r"Function : (\w+)", subprocess.check_output([tool, "-sass", image_file], text=True))[1:]
    code = dict(zip(functions[::2], functions[1::2], strict=True))
    for variant, meta in zip(kernel.variants(), metas, strict=True):
        if not variant["ALIGNED"]:
            continue
        accesses = set(re.findall(r"\b((?:LDG|STG|LDL|STL)\.\S+)", code[meta["symbol"]]))
        narrow = {a for a in accesses if not a.endswith(".128")}
        assert any(a.startswith("LDG") for a in accesses)
        assert narrow == ({"LDG.E", "STG.E", "STG.E.64"} if variant.get("FP8") else set()), meta["symbol"]


@pytest.mark.parametrize("width, group, quant", [(256, 0, 128), (192, 0, 64), (192, 0, 192), (512, 256, 256), (288, 96, 32)])
def test_many_rows(backend, width, group, quant):
    """More tiles than blocks that fit, the last one ragged; z of strides of its own. Every row as if it were alone."""
    n = 173
    x, weight = randn(1, n, width, device=backend.device), randn(2, width, device=backend.device)
    z = randn(3, n, width + 32, device=backend.device)[:, 16 : 16 + width]
    options = dict(group_size=group, norm_before_gate=group == 0)
    y = gdn_ops.gated_rmsnorm(x, weight, z, **options)
    assert_close(y, reference.gated_rmsnorm(x, weight, z, **options), RMS)
    assert_close(gdn_ops.l2norm(z), reference.l2norm(z), RMS)
    fp8, scales = gdn_ops.gated_rmsnorm_fp8(x, weight, z, **options, quant_group=quant)
    assert_close(scales, reference.gated_rmsnorm_fp8(x, weight, z, **options, quant_group=quant)[1], 2e-6)
    for i in (0, 40, n - 1):
        row = slice(i, i + 1)
        alone = x[row], weight, z[row]
        assert torch.equal(gdn_ops.gated_rmsnorm(*alone, **options), y[row])
        assert torch.equal(gdn_ops.l2norm(z[row]), gdn_ops.l2norm(z)[row])
        a, b = gdn_ops.gated_rmsnorm_fp8(*alone, **options, quant_group=quant)
        assert torch.equal(a.view(torch.uint8), fp8[row].view(torch.uint8)) and torch.equal(b, scales[row])


def test_in_place(backend):
    """y may be x: a block asks for a tile's rows before it stores the one ahead."""
    x, z, weight = (randn(i, *shape, device=backend.device) for i, shape in enumerate([(173, 256), (173, 256), (256,)]))
    want = gdn_ops.gated_rmsnorm(x, weight, z)
    gdn_ops.gated_rmsnorm(x, weight, z, out=x)
    assert torch.equal(x, want)
