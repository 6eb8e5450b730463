#!/usr/bin/env bash
# GRPO on your own data and reward: ./train.sh --data my.json --reward_func ./my_reward.py; --help lists every option.
# Without arguments: example data, and a tiny model on a machine without a GPU. Paths are meant from where you stand.
set -euo pipefail

# The usual knobs; --option value wins over a variable. An empty variable leaves the value of configs/custom.yaml.
export ROLLOUT_N="${ROLLOUT_N:-}"                     # responses a prompt; default 5
export NORM_ADV_BY_STD="${NORM_ADV_BY_STD:-}"         # default true; false: Dr.GRPO
export USE_KL_LOSS="${USE_KL_LOSS:-}"                 # default true; false: KL is taken from the reward
export KL_LOSS_COEF="${KL_LOSS_COEF:-}"               # default 0.001
export KL_LOSS_TYPE="${KL_LOSS_TYPE:-}"               # default low_var_kl
export TRAIN_BATCH_SIZE="${TRAIN_BATCH_SIZE:-}"       # prompts a step; default 256
export LEARNING_RATE="${LEARNING_RATE:-}"             # default 1e-6
export TOTAL_EPOCHS="${TOTAL_EPOCHS:-}"               # default 15
export MAX_RESPONSE_LENGTH="${MAX_RESPONSE_LENGTH:-}" # tokens; default 1024

exec bash "$(dirname "${BASH_SOURCE[0]}")/../../scripts/launch.sh" custom "$@"
