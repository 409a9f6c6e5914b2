#!/usr/bin/env bash
# README command 1: builds the wheel for the GPU of this machine (for sm_90 without one), installs it into an environment
# of its own and generates text with transformers' Qwen3.5 on it. Arguments go to examples/generate.py:
#
#     bash tools/quickstart.sh [TEXT] [--tokens 64] [--device cpu]
#
# GDN_CUDA_ARCHS=80,90 chooses the archs, PYTHON the interpreter.
set -euo pipefail
ROOT=$(cd "$(dirname "$0")/.." && pwd)
. "$ROOT/tools/env.sh"

echo "== environment"
make_env "$ROOT/.venv-quickstart"

capabilities=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null) || capabilities=
served=$(cd "$ROOT" && python -m tools.archs $capabilities)
if [ -n "$capabilities" ] && [ -z "$served" ]; then
  echo "no kernels for this GPU (compute capability $capabilities): going on with the CPU"
  set -- "$@" --device cpu
fi
export GDN_CUDA_ARCHS=${GDN_CUDA_ARCHS:-${served:-90}}

echo "== wheel for ${GDN_CUDA_ARCHS}"
build_wheel
(cd / && python -m gdn_ops info)

echo "== generation"
python "$ROOT/examples/generate.py" "$@"
