#!/usr/bin/env bash
# sft.sh TASK [--option value ...] [key=value ...]: warm start of a recipe's model on worked answers, by verl's supervised
# trainer; `sft.sh TASK --help` lists the options.
#
# It takes the launcher's options and variables for data, model and lengths (docs/CONFIGURATION_REFERENCE.md), and
#   LR                0.0002      learning rate; falls along a cosine
#   TOTAL_EPOCHS      3           epochs of the worked answers
#   MAX_STEPS         null        updates; null: all epochs
#   TRAIN_BATCH_SIZE  64          worked answers an update
#   EXPERIMENT_NAME   <task>_sft  names the run and artifacts/models/EXPERIMENT_NAME
# Every other key of verl's supervised trainer is key=value; configs/sft/settings.yaml has those that are set.
set -euo pipefail

exec bash "$(dirname "${BASH_SOURCE[0]}")/start.sh" recipes.sft "$0" "$@"
