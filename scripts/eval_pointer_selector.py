"""Evaluate a trained pointer selector against the baselines and its warm-up, with paired tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.installation import ensure

ensure()

import typer

from recipes.pointer_selector.cli import evaluate_command

if __name__ == "__main__":
    typer.run(evaluate_command)
