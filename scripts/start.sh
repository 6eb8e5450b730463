#!/usr/bin/env bash
# start.sh MODULE SCRIPT [ARGUMENT ...]: set up the environment the first time, then run a module of `recipes` in it.
#
# SCRIPT is what was typed; RECIPES_LAUNCHER has its name where it names its task, as the launchers in examples/ do. --help
# installs nothing: it prints the head of SCRIPT, and then the module's help where an environment is ready.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
module="$1" script="$2"
shift 2
machine="${HARDWARE:-}"
case "${DRY_RUN:-0}" in 0 | [Ff]* | [Nn]* | [Oo][Ff]*) dry="" ;; *) dry=1 ;; esac
help=""
words=("$@")
for i in "${!words[@]}"; do # the set-up needs to know the arguments that decide the environment
    case "${words[i]}" in
        --hardware) machine="${words[i + 1]:-}" ;;
        --hardware=* | hardware=*) machine="${words[i]#*=}" ;;
        --dry_run | --dry-run | --plan) dry=1 ;;
        --help | -h) help=1 ;;
    esac
done
if [ "$dry" ]; then machine=auto; fi # a dry run only prints: install nothing for another kind of machine
if [ "$help" ]; then
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$script"
    python="$(HARDWARE=auto "$ROOT/scripts/setup_env.sh" ready)"
    if [ -z "$python" ]; then
        printf '\nEvery option with its default, after the set-up: bash scripts/setup_env.sh\n'
        exit
    fi
else
    python="$(HARDWARE="$machine" "$ROOT/scripts/setup_env.sh")"
fi
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
case "$(cd "$(dirname "$script")" && pwd)" in "$ROOT/scripts") unset RECIPES_LAUNCHER ;; *) export RECIPES_LAUNCHER="$script" ;; esac
export PYTHONSAFEPATH=1 # a folder named recipes in the working directory must not hide ours
exec "$python" -m recipes.installation start "$module" "$@"
