#!/usr/bin/env bash
# GRPO on GSM8K with a calculator: SmolLM2-135M-Instruct after its warm start (smollm2_135m_gsm8k_calculator_sft.sh), on one GPU.
#
#   MAX_STEPS=1 bash examples/gsm8k/smollm2_135m_gsm8k_calculator_grpo.sh [key=value ...]
#
# Variables, and what configs/gsm8k_calculator.yaml has for them:
#   MODEL_PATH            artifacts/models/gsm8k_calculator_sft  a folder or a hub's name
#   MAX_STEPS             null             steps; null: 2 epochs of 58 steps
#   GPUS_PER_NODE         1                or CPU ranks
#   ROLLOUT_BATCH_SIZE    128              prompts a step
#   GLOBAL_BATCH_SIZE     64               prompts an update
#   ROLLOUT_N             16               responses a prompt
#   LR                    4e-05            learning rate
#   KL_COEF               0.001            weight of KL in the loss
#   EXPERIMENT_NAME       gsm8k_calculator names the run and its folders
# Every other variable and key: docs/CONFIGURATION_REFERENCE.md.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/launch.sh" gsm8k_calculator "$@"
