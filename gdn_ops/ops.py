"""The raw operators, ``gdn_ops.ops.X`` for ``torch.ops.gdn.X``: typed in ``ops.pyi``, which the build makes from the table.

The functions of ``gdn_ops`` itself do the same and are documented.
"""

import torch

from gdn_ops import _library  # noqa: F401  (registers the operators)
from gdn_ops.table import OPS


def __getattr__(name: str):
    if name not in OPS:
        raise AttributeError(f"gdn_ops.ops has no operator {name!r}")
    return getattr(torch.ops.gdn, name)


def __dir__() -> list[str]:
    return sorted(OPS)
