#!/usr/bin/env bash
# sft.sh TASK [key=value ...]: warm start of a recipe's model on worked answers, by verl's supervised trainer.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
machine="${HARDWARE:-}"
case "${DRY_RUN:-0}" in 0 | false | no | off) ;; *) machine=auto ;; esac # only prints: no other machine's environment
python="$(HARDWARE="$machine" "$ROOT/scripts/setup_env.sh")"
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONSAFEPATH=1 # a folder named recipes in the working directory must not hide ours
exec "$python" -m recipes.sft "$@"
