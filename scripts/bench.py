"""Benchmarks: `python scripts/bench.py NAME`; `--help` lists the names, docs/PERFORMANCE.md has results."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.interpreter import ensure

ensure()

import typer

from recipes.benchmarks import against_trl, rewards, smoke, step

MODULES = (step, against_trl, rewards, smoke)
"""Each has a `command`, whose docstring is what `--help` shows."""

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, help=__doc__)
for module in MODULES:
    app.command(module.__name__.rpartition(".")[2])(module.command)

if __name__ == "__main__":
    app()
