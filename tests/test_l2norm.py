import pytest
import torch
from harness import assert_close, guarded, seeded

import gdn_ops
from gdn_ops import reference

RMS = {torch.float32: 1e-6, torch.bfloat16: 2.5e-3, torch.float16: 4e-4}  # rounding of the stored output


@pytest.mark.parametrize("dtype", RMS, ids=str)
@pytest.mark.parametrize("shape", [(1, 7, 3, 64), (2, 5, 2, 128), (3, 100), (4, 1, 256), (5, 2048), (2, 3, 1)], ids=str)
def test_values(backend, dtype, shape):
    x = guarded(torch.randn(shape, generator=seeded(1)).to(dtype), backend.device)
    got = gdn_ops.l2norm(x)
    assert got.dtype == dtype and got.is_contiguous()
    assert_close(got, reference.l2norm(x), RMS[dtype])
    assert torch.equal(got, gdn_ops.l2norm(x))


def test_strided_rows(backend):
    x = guarded(torch.randn(2, 9, 800, generator=seeded(2)), backend.device)[:, :, 5:389].unflatten(-1, (3, 128))
    assert_close(gdn_ops.l2norm(x), reference.l2norm(x), 1e-6)


@pytest.mark.parametrize("width", [64, 100, 128, 256])
@pytest.mark.parametrize("c, want", [(0, 0), (3e-5, 0.0299865), (1e-4, 0.0995037), (1e-3, 0.7071068), (1e-2, 0.9950372), (1, 0.9999995)])
def test_epsilon_is_inside_the_root(backend, width, c, want):
    x = torch.zeros(2, width, device=backend.device)
    x[1, 3] = c
    assert gdn_ops.l2norm(x)[1, 3].item() == pytest.approx(want, rel=2e-6)


def test_large_fp16(backend):
    x = torch.full((2, 128), 1e4, dtype=torch.float16, device=backend.device)
    assert_close(gdn_ops.l2norm(x), torch.full((2, 128), 128**-0.5), 4e-4)
