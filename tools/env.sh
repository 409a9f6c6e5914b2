# Sourced by the two README commands: `make_env DIR` makes a virtual environment with tools/requirements.txt in it and
# puts it first on PATH. PYTHON chooses the interpreter.

die() {
  echo "$(basename "$0"): $*" >&2
  exit 1
}

make_env() {
  local python=${PYTHON:-python3}
  command -v "$python" >/dev/null || die "no $python: Python 3.10 or newer is needed (set PYTHON to choose one)"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || die "$("$python" --version) is too old: 3.10 or newer is needed"
  command -v c++ >/dev/null || die "no c++: a C++20 compiler is needed (GCC 11 or newer)"
  [ "$(uname -sm)" = "Linux x86_64" ] || die "this is $(uname -sm); the library is built for Linux x86_64"
  unset PYTHONPATH PYTHONHOME
  export PYTHONNOUSERSITE=1
  [ -x "$1/bin/python" ] || "$python" -m venv "$1" || die "could not make $1 (on Debian and Ubuntu: install python3-venv)"
  export VIRTUAL_ENV=$1 PATH=$1/bin:$PATH
  python -m pip install --quiet --disable-pip-version-check -r "$ROOT/tools/requirements.txt"
}

# build_wheel: dist/gdn_ops-*.whl for GDN_CUDA_ARCHS, installed into the environment
build_wheel() {
  rm -f "$ROOT"/dist/gdn_ops-*.whl
  (cd "$ROOT" && python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps -w dist .)
  python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall "$ROOT"/dist/gdn_ops-*.whl
  (cd / && python -c "import gdn_ops, sys; sys.exit(not gdn_ops.__file__.startswith(sys.prefix))") || die "the installed package is not the one imported"
  ls -l "$ROOT"/dist/gdn_ops-*.whl
}
