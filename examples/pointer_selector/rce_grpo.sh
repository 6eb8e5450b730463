#!/usr/bin/env bash
# The pointer selector: RCE warm-up, then GRPO, on logged candidates; on the embedded digits unless told otherwise.
# bash examples/pointer_selector/rce_grpo.sh [key=value ...]
set -euo pipefail

# Only what is set is passed on: an empty variable leaves the value of configs/pointer_selector.yaml.
export RCE_EPOCHS="${RCE_EPOCHS:-}"
export GRPO_EPOCHS="${GRPO_EPOCHS:-}"
export BATCH_SIZE="${BATCH_SIZE:-}"                   # queries
export RCE_LR="${RCE_LR:-}"
export GRPO_LR="${GRPO_LR:-}"
export KL_BETA="${KL_BETA:-}"
export REWARD_MODE="${REWARD_MODE:-}"                 # combined, hard_soft, separated, correctness, probability, quality
export REWARD_ALPHA="${REWARD_ALPHA:-}"               # weight of the soft part
export REWARD_BETA="${REWARD_BETA:-}"                 # weight of correctness
export NUM_LAYERS="${NUM_LAYERS:-}"                   # 1 to 3
export SHOT_NUM="${SHOT_NUM:-}"
export EARLY_STOP_PATIENCE="${EARLY_STOP_PATIENCE:-}" # epochs; 0 never stops
export SEED="${SEED:-}"
export CANDIDATES="${CANDIDATES:-}"                   # JSON of logged candidates; default: the embedded workload
export QUERY_EMBEDDINGS="${QUERY_EMBEDDINGS:-}"       # safetensors, npz or pt
export CANDIDATE_EMBEDDINGS="${CANDIDATE_EMBEDDINGS:-}"
export EXPERIMENT_NAME="${EXPERIMENT_NAME:-}"         # names the run and its folders; default pointer_selector

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
PYTHON="$("$ROOT/scripts/setup_env.sh")"
exec "$PYTHON" "$ROOT/scripts/train_pointer_selector.py" "$@"
