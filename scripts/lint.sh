#!/usr/bin/env bash
# lint.sh: linter, formatter, types and import contract, as scripts/test.sh and the pre-commit hook run them.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="$("$ROOT/scripts/setup_env.sh")"
cd "$ROOT"
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
"$python" -m ruff check .
"$python" -m ruff format --check .
"$python" -m mypy
"$(dirname "$python")/lint-imports" --no-cache
