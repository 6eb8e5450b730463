"""Probe, measure and compare models on GSM8K; `--help` lists the options, docs/EVALUATION_DESIGN.md the metrics."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.installation import ensure

ensure()

from recipes.evaluation.cli import app

if __name__ == "__main__":
    sys.argv.insert(1, "gsm8k")
    app()
