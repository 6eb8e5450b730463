#!/usr/bin/env bash
# launch.sh TASK [key=value ...]: set up the environment the first time, then train; see `launch.sh --help`.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
machine="${HARDWARE:-}"
case "${DRY_RUN:-0}" in 0 | false | no | off) dry="" ;; *) dry=1 ;; esac
words=("$@")
for i in "${!words[@]}"; do # the set-up needs to know the arguments that decide the environment
    case "${words[i]}" in
        --hardware) machine="${words[i + 1]:-}" ;;
        --hardware=* | hardware=*) machine="${words[i]#*=}" ;;
        --dry_run | --dry-run) dry=1 ;;
    esac
done
if [ "$dry" ]; then machine=auto; fi # a dry run only prints: install nothing for another kind of machine
python="$(HARDWARE="$machine" "$ROOT/scripts/setup_env.sh")"
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONSAFEPATH=1 # a folder named recipes in the working directory must not hide ours
exec "$python" -m recipes.launch "$@"
