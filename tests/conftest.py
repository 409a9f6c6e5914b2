import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from backends import Backend  # noqa: E402


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(params=["cpu", pytest.param("interpreter", marks=pytest.mark.interpreter), pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request):
    """Where an op runs: its C++ CPU twins, its Triton kernels through Triton's interpreter, or the GPU."""
    with Backend(request.param) as backend:
        yield backend


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def native_backend(request):
    """As ``backend``, without interpreting kernels: for what is too large for that, or not about kernels."""
    with Backend(request.param) as backend:
        yield backend


@pytest.fixture(autouse=True)
def grad_mode():
    """Every test starts with gradients enabled: a compiled package may leave the thread without."""
    torch.set_grad_enabled(True)
