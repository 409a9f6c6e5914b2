"""Builds the library with tools/build_kernels.py and packs it into one wheel for every Python.

``GDN_CUDA_ARCHS=90`` restricts the archs. Everything else is in pyproject.toml.
"""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
LIBRARY = ROOT / "gdn_ops" / "lib" / "libgdn_ops.so"


def platform_tag() -> str:
    spec = importlib.util.spec_from_file_location("gdn_elf", ROOT / "tools" / "elf.py")
    elf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(elf)
    return elf.platform_tag(LIBRARY)


class BuildPy(build_py):
    def run(self):
        subprocess.check_call([sys.executable, str(ROOT / "tools" / "build_kernels.py")])
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)  # files of an earlier build must not reach the wheel
        super().run()


class Wheel(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", platform_tag()


class BinaryDistribution(Distribution):
    def has_ext_modules(self):
        return True


setup(
    cmdclass={"build_py": BuildPy, "bdist_wheel": Wheel},
    distclass=BinaryDistribution,
    options={"build": {"build_base": "build/python"}},
)
