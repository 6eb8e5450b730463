"""Write the official values in configs/official from a checkout of EasyR1 or verl."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.interpreter import ensure

ensure()

import typer

from recipes.config.official_checkout import write
from recipes.errors import reported_errors


def main(
    checkout: Annotated[Path, typer.Argument(help="Folder of a git checkout of EasyR1 or verl.")],
) -> None:
    """Write the official values in configs/official from a checkout of EasyR1 or verl."""
    with reported_errors():
        for path in write(checkout):
            print(f"wrote {path}")


if __name__ == "__main__":
    typer.run(main)
