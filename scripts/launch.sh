#!/usr/bin/env bash
# launch.sh TASK [key=value ...]: set up the environment the first time, then train; see `launch.sh --help`.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
words=("$@")
for i in "${!words[@]}"; do # the set-up needs to know the one argument that decides the environment
    case "${words[i]}" in
        --hardware) HARDWARE="${words[i + 1]:-}" ;;
        --hardware=* | hardware=*) HARDWARE="${words[i]#*=}" ;;
    esac
done
python="$(HARDWARE="${HARDWARE:-}" "$ROOT/scripts/setup_env.sh")"
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONSAFEPATH=1 # a folder named recipes where the user stands must not hide ours
exec "$python" -m recipes.launch "$@"
