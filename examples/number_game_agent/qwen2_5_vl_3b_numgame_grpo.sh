#!/usr/bin/env bash
# GRPO on the number game: Qwen2.5-VL-3B looks at screenshots, on 2 GPUs; a tiny model on a machine without one.
#
#   MAX_STEPS=1 bash examples/number_game_agent/qwen2_5_vl_3b_numgame_grpo.sh [key=value ...]
#
# Variables, and what configs/number_game.yaml has for them:
#   MODEL_PATH            Qwen/Qwen2.5-VL-3B-Instruct  a folder or a hub's name
#   TOTAL_EPOCHS          15                           epochs of 9 steps
#   MAX_STEPS             null                         steps; null: by TOTAL_EPOCHS
#   GPUS_PER_NODE         2                            or CPU ranks
#   TENSOR_PARALLEL_SIZE  1                            GPUs of one vLLM engine
#   GPU_MEMORY_UTIL       0.6                          vLLM's share of a GPU
#   ROLLOUT_BATCH_SIZE    128                          prompts a step
#   GLOBAL_BATCH_SIZE     64                           prompts an update
#   ROLLOUT_N             5                            responses a prompt
#   LR                    1e-06                        learning rate
#   KL_COEF               0.01                         weight of KL, a term of the loss
#   EXPERIMENT_NAME       number_game                  names the run and its folders
# Every other variable and key: docs/CONFIGURATION_REFERENCE.md.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/launch.sh" number_game "$@"
