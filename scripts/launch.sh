#!/usr/bin/env bash
# launch.sh TASK [--option value ...] [key=value ...]: train a recipe with GRPO; see `launch.sh --help`.
#
# Tasks are the files of configs/. A variable is an option too, ROLLOUT_N=8 is --rollout_n 8, and docs/CONFIGURATION_REFERENCE.md
# has every one. The launchers in examples/ source this file, so that $0 is what was typed.
set -euo pipefail

exec bash "$(dirname "${BASH_SOURCE[0]}")/start.sh" recipes.launch "$0" "$@"
