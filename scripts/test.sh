#!/usr/bin/env bash
# test.sh [pytest arguments]: set up the environment the first time, then lint, unit tests and the real one-step run.
# With arguments, only pytest with these arguments, for instance `scripts/test.sh -k reward`.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="$("$ROOT/scripts/setup_env.sh")"
cd "$ROOT"
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
if (($#)); then exec "$python" -m pytest "$@"; fi

echo "== linter"
bash scripts/lint.sh
echo "== unit tests: 3 to 4 minutes on two cores"
"$python" -m pytest -n 2 --dist loadfile -m "not trainer" --durations 5 -rfE
echo "== the real trainer: about 6 minutes on two cores"
exec "$python" -m pytest -n 2 --dist loadfile -m trainer --durations 0 -rfE
