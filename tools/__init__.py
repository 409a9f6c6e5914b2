"""Build tools. They read ``gdn_ops.table`` without running ``gdn_ops/__init__.py``, which loads the built library."""

import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_package = types.ModuleType("gdn_ops")
_package.__path__ = [str(ROOT / "gdn_ops")]
sys.modules.setdefault("gdn_ops", _package)
