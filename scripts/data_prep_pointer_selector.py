"""Make the embedded workload (scikit-learn's digits), or report on a candidate file of your own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.interpreter import ensure

ensure()

import typer
from rich.console import Console
from rich.table import Table

from recipes.errors import reported_errors
from recipes.pointer_selector.resolve import resolve


def main(
    settings: Annotated[list[str] | None, typer.Argument(help="key=value, for instance workload.seed=1")] = None,
) -> None:
    """Read and check the recipe's data, and print what it holds; the embedded workload is made if it is not there."""
    with reported_errors():
        recipe = resolve(settings or [])
        from recipes.pointer_selector.preparation import files, prepare

        prepared = prepare(recipe)
        table = Table(title=str(files(recipe.data).candidates), show_header=False, title_justify="left", box=None)
        dropped = [(f"dropped from training: {name}", f"{count:,}") for name, count in prepared.dropped.items()]
        splits = [(f"{name} queries", f"{len(part):,}") for name, part in prepared.parts.items()]
        for name, value in [*prepared.report.rows(), *splits, *dropped]:
            table.add_row(name, value)
        Console(highlight=False, soft_wrap=True).print(table)


if __name__ == "__main__":
    typer.run(main)
