"""Train the pointer selector, RCE warm-up then GRPO; arguments are key=value (docs/POINTER_SELECTOR.md)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.installation import ensure

ensure()

import typer

from recipes.pointer_selector.cli import train_command

if __name__ == "__main__":
    typer.run(train_command)
