#!/usr/bin/env bash
# test.sh [pytest arguments]: set up the environment the first time, then lint, unit tests and the real trainer.
# With arguments, only pytest with these arguments, for instance `scripts/test.sh -k reward`.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="$("$ROOT/scripts/setup_env.sh")"
cd "$ROOT"
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
if (($#)); then exec "$python" -m pytest "$@"; fi

log="$(mktemp)"
trap 'rm -f "$log"' EXIT
bash scripts/lint.sh >"$log" 2>&1 &
linter=$!
# A trainer takes up to 6 GiB, and waits a third of its time for its processes: where there is room, three use two cores.
workers="$(awk '/MemAvailable/ { print ($2 > 18 * 2^20) ? 3 : 2 }' /proc/meminfo 2>/dev/null)" || workers=2
echo "== tests, the real trainer's first: about 8 minutes on two cores; the linter runs beside them"
failed=0
"$python" -m pytest -n "$workers" --dist loadfile --no-loadscope-reorder --durations 15 -rfE || failed=$?
wait "$linter" || failed=$?
echo "== linter"
cat "$log"
exit "$failed"
