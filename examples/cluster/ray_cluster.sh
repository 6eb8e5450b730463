#!/usr/bin/env bash
# Ray on several machines, for recipes with NNODES above 1. Every machine has the repository, data and models at the same
# paths (a shared folder), and the same environment. docs/MULTI_NODE.md goes through it.
#
#   ray_cluster.sh head                    on the first machine; prints its address
#   ray_cluster.sh worker HOST:PORT        on every other machine; waits for the head
#   ray_cluster.sh submit HOST:PORT CMD    on the head: run a launcher on the cluster
#   ray_cluster.sh status HOST:PORT        which machines are there
#   ray_cluster.sh stop                    on every machine: end its Ray
#
# A machine without GPUs counts GPUS_PER_NODE (1) slots, which Ray calls GPUs, for as many ranks.
# RAY_PORT (6379) is the head's port; RAY_JOIN_TRIES (60) how often a worker looks for it; RAY_NODE_OPTIONS are further options of `ray start`, such as --num-gpus=8.
# RAY_AUTH_MODE=token with one RAY_AUTH_TOKEN on all machines keeps others out (`ray get-auth-token --generate` makes one).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

port="${RAY_PORT:-6379}"
slots=()
if ! nvidia-smi -L >/dev/null 2>&1; then slots=(--num-gpus="${GPUS_PER_NODE:-1}" --num-cpus=$((12 + 4 * ${GPUS_PER_NODE:-1}))); fi
read -ra options <<<"${slots[*]} ${RAY_NODE_OPTIONS:-}" # the later wins
command -v ray >/dev/null || PATH="$(dirname "$(bash scripts/setup_env.sh)"):$PATH"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" RAY_USAGE_STATS_ENABLED=0
# Without a mode, Ray's head takes a token that it finds (~/.ray/auth_token), and its workers and drivers do not.
export RAY_AUTH_MODE="${RAY_AUTH_MODE:-disabled}"

address() { [ -n "${1:-}" ] || { echo "usage: ray_cluster.sh worker|submit|status HOST:PORT ..." >&2; exit 2; }; echo "$1"; }

case "${1:-}" in
    head)
        ray start --head --port="$port" --disable-usage-stats "${options[@]}"
        echo "the other machines: bash $0 worker $(hostname -I 2>/dev/null | awk '{print $1}'):$port"
        ;;
    worker)
        head=$(address "${2:-}")
        for _ in $(seq "${RAY_JOIN_TRIES:-60}"); do
            ray start --address="$head" --disable-usage-stats "${options[@]}" && exit 0
            echo "no head at $head yet" >&2
            sleep 5
        done
        echo "error: no Ray head at $head; is it started, its port open between the machines, and RAY_AUTH_TOKEN the same?" >&2
        exit 1
        ;;
    submit)
        head=$(address "${2:-}")
        shift 2
        [ $# -gt 0 ] || { echo "usage: ray_cluster.sh submit HOST:PORT bash examples/<task>/<launcher>.sh" >&2; exit 2; }
        RAY_ADDRESS="$head" exec "$@"
        ;;
    status) RAY_ADDRESS=$(address "${2:-}") ray status ;;
    stop) ray stop ;;
    *)
        sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "$0" >&2
        exit 2
        ;;
esac
