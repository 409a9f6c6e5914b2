#!/usr/bin/env bash
# README command 2: builds the wheel for all archs in a fresh environment, installs it there and runs everything that
# needs no GPU against the installed package, from outside the source tree. Arguments go to pytest.
#
# PYTHON chooses the interpreter. Fails if any check fails or no test ran.
set -euo pipefail
ROOT=$(cd "$(dirname "$0")/.." && pwd)
. "$ROOT/tools/env.sh"

step() { echo "== $1 ($((SECONDS / 60)) min)"; }

step "environment"
rm -rf "$ROOT/.venv-test"
make_env "$ROOT/.venv-test"

step "style"
cd "$ROOT"
ruff check .
ruff format --check .
find csrc tests \( -name '*.cpp' -o -name '*.h' -o -name '*.cu' \) -print0 | xargs -0 clang-format --dry-run --Werror

step "wheel for all archs"
unset GDN_CUDA_ARCHS
build_wheel
(cd / && python -c "from gdn_ops import build_info, spec; assert build_info()['archs'] == [f'sm_{a}' for a in spec.ARCHS]")

step "tests"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 # two workers on two cores
export TRITON_CACHE_DIR=$work/triton TORCHINDUCTOR_CACHE_DIR=$work/inductor TORCHINDUCTOR_COMPILE_THREADS=1
python -m pytest -q -n 2 --dist loadgroup -p no:cacheprovider --durations=10 --junitxml=tests.xml "$@" "$ROOT/tests"
python - <<'EOS'
import xml.etree.ElementTree as xml

suite = xml.parse("tests.xml").getroot().find("testsuite")
ran = int(suite.get("tests")) - int(suite.get("skipped"))
assert ran > 0, "no test ran"
EOS
step "done"
