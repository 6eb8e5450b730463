#!/usr/bin/env bash
# The pointer selector: RCE warm-up, then GRPO, on logged candidates; without data of your own, on embedded digits.
#
#   bash examples/pointer_selector/rce_grpo.sh [--preset NAME] [key=value ...]
#
# Variables, and what configs/pointer_selector/recipe.yaml has for them:
#   RCE_EPOCHS            5            passes over the training groups in the warm-up
#   GRPO_EPOCHS           10           passes over the training groups in GRPO
#   BATCH_SIZE            16           queries in a batch, each with all its candidates
#   RCE_LR                0.001        peak learning rate of the warm-up
#   GRPO_LR               0.001        peak learning rate of GRPO
#   KL_BETA               0.0          weight of the penalty for leaving the warm-up policy
#   REWARD_MODE           probability  combined, hard_soft, separated, correctness, probability, quality
#   REWARD_ALPHA          1.0          weight of the soft part; correctness has none
#   REWARD_BETA           1.0          weight of correctness; probability and quality have none
#   NUM_LAYERS            1            layers of cross-attention, 1 to 3
#   SHOT_NUM              4            picks of the sequences that are trained on
#   EARLY_STOP_PATIENCE   5            epochs without a better validation; 0 never stops
#   SEED                  1            initial weights, order of the data, dropout
#   CANDIDATES            null         logged candidates, JSON lines; null: the embedded digits
#   QUERY_EMBEDDINGS      null         safetensors or npz
#   CANDIDATE_EMBEDDINGS  null         null: the file of the queries
#   EXPERIMENT_NAME       pointer_selector  names the run and its folders
# Presets lie beside that file: epochs_25_25, epochs_3_8, epochs_10_15. Every other key: docs/POINTER_SELECTOR.md.
set -euo pipefail

exec bash "$(dirname "${BASH_SOURCE[0]}")/../../scripts/start.sh" recipes.pointer_selector.cli "${BASH_SOURCE[0]}" "$@"
