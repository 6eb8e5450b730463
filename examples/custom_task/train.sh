#!/usr/bin/env bash
# GRPO on your own data and reward: ./train.sh --data my.json --reward_func ./my_reward.py; --help lists every option.
#
# Without arguments: example data, and a tiny model on a machine without a GPU. Paths are meant from where you stand.
# --option value wins over a variable, a variable over configs/custom.yaml:
#   ROLLOUT_N            5           responses a prompt
#   NORM_ADV_BY_STD      true        false: Dr.GRPO
#   USE_KL_LOSS          true        false: KL is taken from the reward
#   KL_LOSS_COEF         null        weight of KL in the loss; null: KL_COEF, which is 0.001
#   KL_LOSS_TYPE         low_var_kl  its estimator
#   TRAIN_BATCH_SIZE     256         prompts a step
#   LEARNING_RATE        1e-06
#   TOTAL_EPOCHS         15
#   MAX_RESPONSE_LENGTH  1024        tokens
# Every other variable and key: docs/CONFIGURATION_REFERENCE.md.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/launch.sh" custom "$@"
