#!/usr/bin/env bash
# launch.sh TASK [key=value ...]: set up the environment the first time, then train; see `launch.sh --help`.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="$("$ROOT/scripts/setup_env.sh")"
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" -m recipes.launch "$@"
