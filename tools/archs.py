"""The archs to build for GPUs of these compute capabilities: ``python -m tools.archs 9.0 8.7`` prints ``86,90``.

A GPU runs what was built for its own capability or an earlier one of the same major version. Prints nothing for GPUs
that no arch serves.
"""

import sys

import tools  # noqa: F401  (makes the table importable without the built library)
from gdn_ops.spec import ARCHS


def archs_for(capabilities: list[str]) -> list[int]:
    found = set()
    for capability in capabilities:
        major, minor = map(int, capability.split("."))
        found.update([a for a in ARCHS if a // 10 == major and a % 10 <= minor][-1:])
    return sorted(found)


if __name__ == "__main__":
    print(",".join(map(str, archs_for(sys.argv[1:]))))
