"""The table's conventions: one name through every layer, no second list, and a registry that finds what the row says."""

import ast
import ctypes
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from samples import SAMPLES

import gdn_ops
from gdn_ops import _library, reference
from gdn_ops.table import KERNELS, OPS, TABLE

ROOT = Path(__file__).resolve().parent.parent
DTYPE_CODE = {"bf16": 0, "fp16": 1, "fp32": 2, "i32": 3, "i64": 4, "fp8": 7}
LINES = {  # style rule 9; the last pattern that fits counts, and the table is data
    "gdn_ops/**/*.py": 250, "gdn_ops/table.py": 600, "tools/*.py": 250, "tools/*.sh": 250, "triton_src/*.py": 300, "csrc/*.cpp": 120, "csrc/cpu/*": 300,
    "csrc/runtime/*": 250, "tests/*.py": 300, "examples/*.py": 250,
}  # fmt: skip

per_op = pytest.mark.parametrize("op", TABLE, ids=lambda op: op.name)
per_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=lambda kernel: kernel.name)


@pytest.fixture(scope="module")
def stubs():
    """tools/stubs.py, whose ``gdn_ops`` is the installed one."""
    sys.path.insert(0, str(ROOT))
    try:
        yield importlib.import_module("tools.stubs")
    finally:
        sys.path.remove(str(ROOT))


# ---- the grep rule ---------------------------------------------------------------------------------------------


@per_op
def test_one_name_through_every_layer(op):
    host = (ROOT / f"csrc/{op.name}.cpp").read_text()
    assert re.search(rf"\b{op.name}\(", host)
    assert (
        f"def {op.name}("
        in (ROOT / "gdn_ops").joinpath(*getattr(gdn_ops, op.name).__module__.split(".")[1:]).with_suffix(".py").read_text()
    )
    assert callable(getattr(reference, op.name)), "the float64 reference"
    assert op.name in SAMPLES, "tests/samples.py: a call that opcheck can make"
    tests = [p for p in ROOT.glob("tests/test_*.py") if p.stem == f"test_{op.name}" or f"gdn_ops.{op.name}(" in p.read_text()]
    assert tests, "tests"


@per_kernel
def test_kernel_has_source_and_twin(kernel):
    source = (ROOT / kernel.source).read_text()
    assert (f"def {kernel.name}_kernel(" if kernel.is_triton else "GDN_VARIANTS(") in source
    if kernel.cpu:
        twin = (ROOT / f"csrc/cpu/{kernel.name}.cpp").read_text()
        assert re.search(
            rf"void {kernel.name}\(const kernels::{kernel.name}::Keys& ?\w*,\s+const kernels::{kernel.name}::Args& ?\w*\)", twin
        )
    waits = re.search(r"\b(wait_for|follow)_kernel_ahead\(\);", source) is not None
    assert waits == kernel.early, "a kernel that starts early waits for the one ahead itself"
    users = [op for op in TABLE if any(k.name == kernel.name for k in op.kernels)]
    assert all(k is kernel for op in users for k in op.kernels if k.name == kernel.name), "two kernels of one name"


def test_no_file_without_a_row():
    assert {p.stem for p in ROOT.glob("csrc/*.cpp")} == set(OPS)
    assert {p.stem for p in ROOT.glob("csrc/cpu/*.cpp")} == {k.name for k in KERNELS.values() if k.cpu}
    sources = {Path(k.source).name for k in KERNELS.values()}
    used = "\n".join(p.read_text() for p in ROOT.glob("triton_src/*.py"))
    spare = [p for p in ROOT.glob("triton_src/*.py") if p.name not in sources and not re.search(rf"from {p.stem} import", used)]
    assert [p.name for p in [*spare, *ROOT.glob("csrc/cuda/*.cu")] if p.name not in sources] == []


@per_op
def test_host_function_has_one_shape(op):
    """Paragraphs in order: shapes, checks, pick, launch. A composite op says what it calls instead of pick and launch."""
    text = (ROOT / f"csrc/{op.name}.cpp").read_text()
    assert 0 < text.find("// shapes") < text.find("// checks")
    assert ".contiguous()" not in text and "getenv" not in text
    if op.kernels and "pick<" in text:
        assert text.find("// checks") < text.find("// pick") < text.find("// launch")


def test_sizes():
    limits = {p: limit for glob, limit in LINES.items() for p in ROOT.glob(glob)}
    lines = {p.relative_to(ROOT).as_posix(): len(p.read_text().splitlines()) for p in limits}
    assert {p: n for (p, n), limit in zip(lines.items(), limits.values()) if n > limit} == {}


# ---- schemas ---------------------------------------------------------------------------------------------------


@per_op
def test_schema(op):
    schema = getattr(torch.ops.gdn, op.name).default._schema
    kinds = {a.name: str(a.type) for a in schema.arguments}
    assert not [n for n, kind in kinds.items() if "str" in kind], "str leaks in boxed stable-ABI kernels"
    assert not re.search(r"\bint\b", op.schema), "SymInt: int recompiles for every value"
    assert not [r for r in schema.returns if r.alias_info], "no op returns an alias of an input"
    assert len(schema.returns) == len(op.outputs)
    assert set(op.shapes) <= set(kinds)
    assert [o for o in op.outputs if o.like and o.like not in kinds] == []
    assert op.replaces and op.dtypes
    assert not set(op.out_args) & set(kinds)
    if op.out:
        out = getattr(torch.ops.gdn, op.name).out._schema
        assert [a.name for a in out.arguments] == [*kinds, *op.out_args] and not out.returns
        assert all(a.kwarg_only and a.alias_info.is_write for a in out.arguments[len(kinds) :])


@per_op
def test_python_function_is_the_schema(op):
    """Same names, order and defaults; a docstring with shapes, errors and source."""
    function = getattr(gdn_ops, op.name)
    schema = getattr(torch.ops.gdn, op.name).default._schema
    want = {a.name: a.default_value if a.has_default_value() else inspect.Parameter.empty for a in schema.arguments}
    got = {name: p.default for name, p in inspect.signature(function).parameters.items()}
    if op.out:
        assert (got.pop("out"), "out" in want) == (None, False), "op.out: a keyword for given memory"
    assert list(got) == list(want)
    # a schema may leave an optional tensor without a default so that required ones can follow it
    differ = {n: (got[n], want[n]) for n in want if got[n] != want[n] and not (got[n] is None and want[n] is inspect.Parameter.empty)}
    assert differ == {}
    for part in ("Args:", "Raises:", "Source"):
        assert part in function.__doc__, part
    assert op.name in gdn_ops.__all__


def test_stub_is_the_table(stubs):
    tree = ast.parse(stubs.text(TABLE))
    found = {f.name: f for f in tree.body if isinstance(f, ast.FunctionDef)}
    assert list(found) == list(OPS)
    for op in TABLE:
        names = [a.name for a in getattr(torch.ops.gdn, op.name).default._schema.arguments]
        assert [a.arg for a in found[op.name].args.args] == names
    assert (Path(gdn_ops.__file__).parent / "ops.pyi").read_text() == stubs.text(TABLE)


def test_readme_table_is_current():
    """``python tools/support_table.py`` writes it."""
    subprocess.run([sys.executable, str(ROOT / "tools/support_table.py"), "--check"], check=True)


def test_ops_module_completes():
    from gdn_ops import ops

    assert dir(ops) == sorted(OPS)
    assert ops.l2norm is torch.ops.gdn.l2norm
    with pytest.raises(AttributeError, match="no operator 'l2nrom'"):
        ops.l2nrom  # noqa: B018


# ---- the registry ----------------------------------------------------------------------------------------------


def find_variant(kernel, values):
    keys = [DTYPE_CODE[v] if isinstance(v, str) else int(v) for v in values]
    return _library.lib.gdn_find_variant(kernel.name.encode(), (ctypes.c_int * max(1, len(keys)))(*keys)).decode()


@per_kernel
def test_every_variant_is_found_by_its_keys_and_no_other(kernel):
    labels = [kernel.label(v) for v in kernel.variants()]
    assert len(set(labels)) == len(labels) > 0
    for variant, label in zip(kernel.variants(), labels):
        assert find_variant(kernel, variant.values()) == label
    if kernel.keys:
        refusal = find_variant(kernel, [9999] * len(kernel.keys))
        assert f"no variant of {kernel.name}" in refusal and labels[0] in refusal


@per_kernel
def test_variants_differ_only_as_their_keys_promise(kernel):
    """A hint ``:16?`` holds in ALIGNED variants only, so a kernel with one must have the key."""
    if kernel.is_triton:
        annotations = re.findall(r'"(\*?\w+:16\?)"', (ROOT / kernel.source).read_text())
        assert not annotations or "ALIGNED" in kernel.keys
