#!/usr/bin/env bash
# Checks and measures the wheel in dist/ on a machine with a GPU. From the root of the source tree:
#
#     tools/gpu.sh [tests[:WORDS]] [sanitize] [bench[:group,group[:WORDS]]] [traffic] [limits:group[:WORDS]]
#         (the first three by default)
#
# tests:WORDS runs what pytest -k WORDS selects, in WORKERS processes (6 by default), bench::WORDS the rows that have
# these words; traffic counts bytes with ncu, limits says what its rows' kernels wait for.
#
# Installs the wheel into ~/site and, if there is a folder .whl, peers into /tmp/site; nothing is imported from the
# source tree. Logs and results go to $OUT (build/gpu by default). Every step runs whatever the others did; the exit
# status is that of the worst.
set -u
ROOT=$(cd "$(dirname "$0")/.." && pwd)
OUT=${OUT:-$ROOT/build/gpu}
SITE=$HOME/site
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
[ $# -eq 0 ] && set -- tests sanitize bench
mkdir -p "$OUT"
summary=() worst=0

# step NAME SECONDS COMMAND...: logs to $OUT/NAME.log (what comes before the tests to setup.log), adds to the summary
step() {
  local name=$1 limit=$2 start=$SECONDS status log=$OUT/$1.log
  case $name in install | peers | wheel) log=$OUT/setup.log ;; esac
  shift 2
  [ "$log" = "$OUT/setup.log" ] || : >"$log"
  (cd /tmp && timeout --signal=INT --kill-after=20 "$limit" "$@") >>"$log" 2>&1
  status=$?
  [ $status -eq 0 ] || worst=1
  summary+=("$name: $([ $status -eq 0 ] && echo ok || echo "FAILED ($status)"), $((SECONDS - start)) s")
  return $status
}

tail_of() { # NAME LINES
  echo "---- $1 (last $2 lines of $1.log)"
  tail -n "$2" "$OUT/$1.log"
}

rm -rf "$SITE" "$OUT/setup.log"
step install 120 python3 -m pip install -q --no-index --no-deps --no-compile --target "$SITE" "$ROOT"/dist/*.whl || tail_of setup 20
export PYTHONPATH=$SITE
PLUGINS=$SITE:/tmp/plugins PEERS=$SITE:/tmp/site # tests see no peer: transformers would use fla where its torch path is meant
shopt -s nullglob
for wheel in "$ROOT"/.whl/*.whl; do
  case ${wheel##*/} in pytest* | execnet*) to=/tmp/plugins ;; *) to=/tmp/site ;; esac
  step peers 60 python3 -m pip install -q --no-index --no-deps --no-compile --target $to "$wheel" || tail_of setup 20
done

cat >/tmp/gdn_where.py <<'PY'
import sys, torch, gdn_ops
info = gdn_ops.build_info()
print("gdn_ops", info["version"], info["archs"], gdn_ops.__file__)
print("torch", torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU")
sys.exit(gdn_ops.__file__.startswith(sys.argv[1]))
PY
step wheel 60 python3 /tmp/gdn_where.py "$ROOT/"
tail_of setup 3

for word in "$@"; do
  case $word in
    tests | tests:*)
      workers=()
      PYTHONPATH=$PLUGINS python3 -c "import xdist" 2>/dev/null && workers=(-n "${WORKERS:-6}" --dist loadgroup)
      pattern=${word#tests}
      step tests 420 env PYTHONPATH="$PLUGINS" OMP_NUM_THREADS=2 python3 -m pytest -m gpu -v --tb=short -p no:cacheprovider --durations=12 \
        -o faulthandler_timeout=90 "${workers[@]}" ${pattern:+-k "${pattern#:}"} "$ROOT/tests"
      grep -aE "FAILED|ERROR" "$OUT/tests.log" | sort -u | head -30
      tail_of tests 30
      ;;
    sanitize)
      if command -v compute-sanitizer >/dev/null; then
        for tool in memcheck racecheck synccheck; do
          PYTORCH_NO_CUDA_MEMORY_CACHING=1 step "$tool" 240 \
            compute-sanitizer --tool $tool --error-exitcode 7 --print-limit 20 python3 "$ROOT/tools/sanitize.py" || true
          tail_of "$tool" 8
        done
      else
        summary+=("sanitize: skipped, no compute-sanitizer here")
      fi
      ;;
    bench | bench:*)
      IFS=: read -r _ groups rows <<<"$word"
      step bench 420 env PYTHONPATH="$PEERS" python3 "$ROOT/tools/bench/run.py" $groups --only "$rows" --out "$OUT"
      grep FAILED "$OUT/bench.log" | cut -c1-300
      sed -n '/^== /,$p' "$OUT/bench.log"
      ;;
    traffic)
      step traffic 150 python3 "$ROOT/tools/bench/traffic.py" --out "$OUT"
      tail_of traffic 8
      ;;
    limits:*)
      IFS=: read -r _ groups rows <<<"$word"
      step limits 240 python3 "$ROOT/tools/bench/limits.py" "$groups" --only "$rows" --out "$OUT"
      tail_of limits 40
      ;;
    *)
      summary+=("$word: unknown step")
      worst=1
      ;;
  esac
done

echo "==== summary"
printf '%s\n' "${summary[@]}"
exit $worst
