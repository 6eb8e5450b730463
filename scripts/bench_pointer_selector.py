"""Benchmarks of the pointer selector: batched or one candidate at a time, growth in queries, the default recipe."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.interpreter import ensure

ensure()

import typer

from recipes.pointer_selector.cli import bench_command

if __name__ == "__main__":
    typer.run(bench_command)
