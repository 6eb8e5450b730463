"""Sweep the pointer selector: arms around the recipe times seeds, one table, one figure; resumable."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.interpreter import ensure

ensure()

import typer

from recipes.pointer_selector.cli import sweep_command

if __name__ == "__main__":
    typer.run(sweep_command)
