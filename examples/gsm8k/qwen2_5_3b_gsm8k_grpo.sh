#!/usr/bin/env bash
# GRPO on GSM8K: Qwen2.5-3B on 8 GPUs, or a tiny model and generated problems on a machine without one.
#
#   MAX_STEPS=1 bash examples/gsm8k/qwen2_5_3b_gsm8k_grpo.sh [key=value ...]
#
# Variables, and what configs/gsm8k.yaml has for them:
#   MODEL_PATH            Qwen/Qwen2.5-3B  a folder or a hub's name
#   MAX_STEPS             null             steps; null: 3 epochs of 233 steps
#   GPUS_PER_NODE         8                or CPU ranks
#   TENSOR_PARALLEL_SIZE  1                GPUs of one vLLM engine
#   ROLLOUT_BATCH_SIZE    32               prompts a step
#   GLOBAL_BATCH_SIZE     32               prompts an update
#   MICRO_BATCH_SIZE      4                responses of one pass; on GPUs passes are filled by tokens
#   ROLLOUT_N             16               responses a prompt
#   LR                    1e-06            learning rate; falls along a cosine
#   KL_COEF               0.01             weight of KL, taken from the reward
#   EXPERIMENT_NAME       gsm8k            names the run and its folders
# Every other variable and key: docs/CONFIGURATION_REFERENCE.md.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/launch.sh" gsm8k "$@"
