"""Every op as tracing sees it: opcheck, fakes equal to real outputs, refusals; and the same bits for any number of threads."""

import pytest
import torch
from calls import with_out
from samples import SAMPLES

from gdn_ops.table import TABLE

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
CALLS = [(op.name, i) for op in TABLE for i in range(len(SAMPLES.get(op.name, [None])))] + [(f"{op.name}.out", 0) for op in TABLE if op.out]
per_call = pytest.mark.parametrize("name, sample", CALLS, ids=lambda x: str(x))


def results(out):
    return () if out is None else out if isinstance(out, (tuple, list)) else (out,)


def call(name, sample, device):
    name, _, form = name.partition(".")
    assert name in SAMPLES, f"tests/samples.py has no call of {name}"
    args = SAMPLES[name][sample](device)
    return with_out(name, args) if form else args


def overload(name):
    name, _, form = name.partition(".")
    return getattr(getattr(torch.ops.gdn, name), form or "default")


@pytest.mark.parametrize("device", DEVICES)
@per_call
def test_opcheck(name, sample, device):
    op, args = overload(name), call(name, sample, device)
    checks = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    if any(isinstance(x, torch.Tensor) and x.dtype == torch.float8_e4m3fn for x in args.values()):
        checks.remove("test_schema")  # it compares copies of the arguments, and torch has no isclose for fp8
    torch.library.opcheck(op, (), args, test_utils=checks)


@pytest.mark.parametrize("device", DEVICES)
@per_call
def test_fake_outputs_are_the_real_ones(name, sample, device):
    """Shapes, strides, dtypes and devices; and no output shares memory with an input or another output."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    args = call(name, sample, device)
    with FakeTensorMode() as mode:
        fakes = {n: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for n, v in args.items()}
        want = overload(name)(**fakes)
    got = overload(name)(**args)
    want, got = map(results, (want, got))
    assert [(x.shape, x.stride(), x.dtype, x.device) for x in got] == [(x.shape, x.stride(), x.dtype, x.device) for x in want]
    spaces = [x.untyped_storage().data_ptr() for x in (*got, *args.values()) if isinstance(x, torch.Tensor) and x.numel()]
    outputs = [x.untyped_storage().data_ptr() for x in got if x.numel()]
    assert all(spaces.count(o) == 1 for o in outputs)


@per_call
def test_threads_do_not_change_bits(name, sample):
    found = []
    threads = torch.get_num_threads()
    try:
        for n in (1, 3):
            torch.set_num_threads(n)
            args = call(name, sample, "cpu")
            out = overload(name)(**args)
            found.append([*results(out), *(v for v in args.values() if isinstance(v, torch.Tensor))])
    finally:
        torch.set_num_threads(threads)
    for a, b in zip(*found):
        a, b = (x.contiguous().view(torch.uint8) if x.dim() else x for x in (a, b))
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", [name for name, sample in CALLS if sample == 0])
def test_tracing_refuses_gradients(name):
    """Under autograd a compiled model gets the same clear error as an eager one, never silent zeros."""
    args = call(name, 0, "cpu")
    floats = [n for n, v in args.items() if isinstance(v, torch.Tensor) and v.is_floating_point()]
    if not floats:
        pytest.skip("no floating-point argument")
    args[floats[0]].requires_grad_()
    with (
        torch._subclasses.FakeTensorMode() as mode,
        pytest.raises(RuntimeError, match=rf"gdn\.{name.partition('.')[0]}: {floats[0]}: expected no gradient"),
    ):
        overload(name)(**{n: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for n, v in args.items()})
