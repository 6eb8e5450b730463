#!/usr/bin/env bash
# GRPO on Countdown: Qwen3-4B on 8 GPUs, or a tiny model on a machine without one.
# MAX_STEPS=1 bash examples/countdown/qwen3_4b_countdown_grpo.sh [key=value ...]
set -euo pipefail

# Only what is set is passed on: an empty variable leaves the value of configs/countdown.yaml.
export MODEL_PATH="${MODEL_PATH:-}"                     # a folder or a hub's name; default Qwen/Qwen3-4B
export MAX_STEPS="${MAX_STEPS:-}"                       # default: 15 epochs of 64 steps
export GPUS_PER_NODE="${GPUS_PER_NODE:-}"               # default 8
export TENSOR_PARALLEL_SIZE="${TENSOR_PARALLEL_SIZE:-}" # default 1
export ROLLOUT_BATCH_SIZE="${ROLLOUT_BATCH_SIZE:-}"     # prompts a step; default 64
export GLOBAL_BATCH_SIZE="${GLOBAL_BATCH_SIZE:-}"       # prompts an update; default 64
export MICRO_BATCH_SIZE="${MICRO_BATCH_SIZE:-}"         # responses a GPU and pass; default 4
export ROLLOUT_N="${ROLLOUT_N:-}"                       # responses a prompt; default 16
export LR="${LR:-}"                                     # default 2e-6
export KL_COEF="${KL_COEF:-}"                           # taken from the reward; default 0.01
export EXPERIMENT_NAME="${EXPERIMENT_NAME:-}"           # names the run and its folders; default countdown

exec bash "$(dirname "${BASH_SOURCE[0]}")/../../scripts/launch.sh" countdown "$@"
