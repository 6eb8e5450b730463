#!/usr/bin/env bash
# GRPO on Countdown: Qwen3-4B on 8 GPUs, or a tiny model on a machine without one.
#
#   MAX_STEPS=1 bash examples/countdown/qwen3_4b_countdown_grpo.sh [key=value ...]
#
# Variables, and what configs/countdown.yaml has for them:
#   MODEL_PATH            Qwen/Qwen3-4B  a folder or a hub's name
#   MAX_STEPS             null           steps; null: 15 epochs of 64 steps
#   GPUS_PER_NODE         8              or CPU ranks
#   TENSOR_PARALLEL_SIZE  1              GPUs of one vLLM engine
#   ROLLOUT_BATCH_SIZE    64             prompts a step
#   GLOBAL_BATCH_SIZE     64             prompts an update
#   MICRO_BATCH_SIZE      4              responses of one pass; on GPUs passes are filled by tokens
#   ROLLOUT_N             16             responses a prompt
#   LR                    2e-06          learning rate
#   KL_COEF               0.01           weight of KL, taken from the reward
#   EXPERIMENT_NAME       countdown      names the run and its folders
# Every other variable and key: docs/CONFIGURATION_REFERENCE.md.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/launch.sh" countdown "$@"
