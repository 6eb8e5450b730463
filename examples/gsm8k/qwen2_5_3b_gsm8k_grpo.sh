#!/usr/bin/env bash
# GRPO on GSM8K: Qwen2.5-3B on 8 GPUs, or a tiny model and generated problems on a machine without one.
# MAX_STEPS=1 bash examples/gsm8k/qwen2_5_3b_gsm8k_grpo.sh [key=value ...]
set -euo pipefail

# Only what is set is passed on: an empty variable leaves the value of configs/gsm8k.yaml.
export MODEL_PATH="${MODEL_PATH:-}"                     # a folder or a hub's name; default Qwen/Qwen2.5-3B
export MAX_STEPS="${MAX_STEPS:-}"                       # default: 3 epochs of 233 steps
export GPUS_PER_NODE="${GPUS_PER_NODE:-}"               # default 8
export TENSOR_PARALLEL_SIZE="${TENSOR_PARALLEL_SIZE:-}" # default 1
export ROLLOUT_BATCH_SIZE="${ROLLOUT_BATCH_SIZE:-}"     # prompts a step; default 32
export GLOBAL_BATCH_SIZE="${GLOBAL_BATCH_SIZE:-}"       # prompts an update; default 32
export MICRO_BATCH_SIZE="${MICRO_BATCH_SIZE:-}"         # responses a GPU and pass; default 4
export ROLLOUT_N="${ROLLOUT_N:-}"                       # responses a prompt; default 16
export LR="${LR:-}"                                     # falls along a cosine; default 1e-6
export KL_COEF="${KL_COEF:-}"                           # taken from the reward; default 0.01
export EXPERIMENT_NAME="${EXPERIMENT_NAME:-}"           # names the run and its folders; default gsm8k

exec bash "$(dirname "${BASH_SOURCE[0]}")/../../scripts/launch.sh" gsm8k "$@"
