#!/usr/bin/env bash
# GRPO on the number game: Qwen2.5-VL-3B looks at screenshots, on 2 GPUs; or a tiny model on a machine without one.
# MAX_STEPS=1 bash examples/number_game_agent/qwen2_5_vl_3b_numgame_grpo.sh [key=value ...]
set -euo pipefail

# Only what is set is passed on: an empty variable leaves the value of configs/number_game.yaml.
export MODEL_PATH="${MODEL_PATH:-}"                     # a folder or a hub's name; default Qwen/Qwen2.5-VL-3B-Instruct
export TOTAL_EPOCHS="${TOTAL_EPOCHS:-}"                 # default 15, of 9 steps each
export MAX_STEPS="${MAX_STEPS:-}"                       # default: by TOTAL_EPOCHS
export GPUS_PER_NODE="${GPUS_PER_NODE:-}"               # default 2
export TENSOR_PARALLEL_SIZE="${TENSOR_PARALLEL_SIZE:-}" # default 1
export GPU_MEMORY_UTIL="${GPU_MEMORY_UTIL:-}"           # vLLM's share of a GPU; default 0.6
export ROLLOUT_BATCH_SIZE="${ROLLOUT_BATCH_SIZE:-}"     # prompts a step; default 128
export GLOBAL_BATCH_SIZE="${GLOBAL_BATCH_SIZE:-}"       # prompts an update; default 64
export ROLLOUT_N="${ROLLOUT_N:-}"                       # responses a prompt; default 5
export LR="${LR:-}"                                     # default 1e-6
export KL_COEF="${KL_COEF:-}"                           # a term of the loss; default 0.01
export EXPERIMENT_NAME="${EXPERIMENT_NAME:-}"           # names the run and its folders; default number_game

exec bash "$(dirname "${BASH_SOURCE[0]}")/../../scripts/launch.sh" number_game "$@"
