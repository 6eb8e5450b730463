"""Train the pointer selector, RCE warm-up then GRPO; arguments are key=value (docs/POINTER_SELECTOR.md)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.interpreter import ensure

ensure()

import typer
from rich.console import Console

from recipes.errors import reported_errors
from recipes.pointer_selector.cli import train


def main(
    settings: Annotated[list[str] | None, typer.Argument(help="key=value, for instance rce.epochs=3")] = None,
) -> None:
    """Train the pointer selector; a run that was interrupted goes on where its last checkpoint is."""
    console = Console(highlight=False, soft_wrap=True)
    try:
        with reported_errors():
            train(settings or [], console)
    except KeyboardInterrupt:
        console.print("interrupted: the same command goes on from the last checkpoint")
        raise typer.Exit(130) from None


if __name__ == "__main__":
    typer.run(main)
