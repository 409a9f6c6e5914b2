"""What the built library asks of the machine it is loaded on, read from its ELF headers with binutils."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

# glibc of the oldest distributions whose libstdc++ has these symbol versions (the manylinux policies).
GLIBC_OF_GLIBCXX = {19: 17, 21: 24, 22: 24, 24: 27, 25: 28, 26: 30, 28: 31, 29: 34, 30: 35, 32: 38, 33: 39}


def _read(*command: str | Path) -> str:
    return subprocess.check_output(list(map(str, command)), text=True, env={**os.environ, "LC_ALL": "C"})


def needed(library: Path) -> list[str]:
    """The libraries it links (DT_NEEDED)."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", _read("readelf", "--dynamic", library))


def symbols(library: Path) -> tuple[set[str], set[str]]:
    """Dynamic symbols it defines, and those it takes from elsewhere (``name@VERSION`` where versioned)."""
    defined, undefined = set(), set()
    for line in _read("nm", "--dynamic", library).splitlines():
        kind, name = line.split()[-2:]
        (undefined if kind in "Uwv" else defined).add(name)
    return defined, undefined


def version(library: Path, family: str) -> tuple[int, ...]:
    """The newest symbol version of a family, such as ``GLIBC``, it needs: ``(2, 34)``."""
    found = re.findall(rf"Name: {family}_([0-9.]+)", _read("readelf", "--version-info", library))
    return max((tuple(map(int, v.split("."))) for v in found), default=())


def platform_tag(library: Path) -> str:
    """``manylinux_2_NN_x86_64`` with the oldest glibc (and the libstdc++ that comes with it) the library loads on."""
    glibc = version(library, "GLIBC")[1]
    newest = version(library, "GLIBCXX")[2:]
    if newest:
        known = [libc for cxx, libc in sorted(GLIBC_OF_GLIBCXX.items()) if cxx >= newest[0]]
        here = int(platform.libc_ver()[1].split(".")[1])  # a compiler newer than the list: what it was built on
        glibc = max(glibc, known[0] if known else here)
    return f"manylinux_2_{glibc}_{platform.machine()}"
