"""The table of ops in README.md, from gdn_ops/table.py.

python tools/support_table.py            # writes it between the two marks
python tools/support_table.py --check    # exit status 1 if README.md is not current
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import tools  # noqa: E402, F401, I001  (makes the table importable without the built library)
from gdn_ops.spec import ARCHS  # noqa: E402
from gdn_ops.table import TABLE  # noqa: E402

START, END = "<!-- support table: python tools/support_table.py -->", "<!-- end of support table -->"


def table() -> str:
    lines = [
        f"Every op runs on the CPU and on {', '.join(f'sm_{a}' for a in ARCHS)}; the form `.out` writes its results to given memory.",
        "",
        "| op | activations | kernels | replaces |",
        "| --- | --- | --- | --- |",
    ]
    for op in TABLE:
        kernels = ", ".join("Triton" if k.is_triton else "CUDA C++" for k in {k.is_triton: k for k in op.kernels}.values())
        lines.append(
            f"| `{op.name}`{', `.out`' if op.out else ''} | {op.dtypes.replace(' ', ', ')} | {kernels or 'composite'} | {op.replaces} |"
        )
    return "\n".join(lines)


def updated(text: str) -> str:
    head, _, rest = text.partition(START)
    return f"{head}{START}\n{table()}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    readme = ROOT / "README.md"
    before = readme.read_text()
    after = updated(before)
    if "--check" in sys.argv[1:]:
        sys.exit("README.md: run python tools/support_table.py" if before != after else 0)
    readme.write_text(after)


if __name__ == "__main__":
    main()
