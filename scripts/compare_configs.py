"""Put a recipe beside official examples of EasyR1 and verl; see `--help`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.installation import ensure

ensure()

import typer

from recipes.errors import reported_errors


def _list_names(asked: bool) -> None:
    """Print the official examples and stop."""
    if asked:
        from recipes.official import names

        print("\n".join(names()))
        raise typer.Exit()


def main(
    recipe: Annotated[str, typer.Argument(help="A task, such as countdown, or the path of a recipe.")],
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="One by name, easyr1:qwen3_4b_math or verl:8b; easyr1 alone: its two with images. Default: "
            "examples of the recipe's kind, text or images."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="File to write, Markdown; default: standard output.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Fail where a difference has no reason.")] = False,
    _: Annotated[
        bool, typer.Option("--list", callback=_list_names, is_eager=True, help="List the official examples and stop.")
    ] = False,
) -> None:
    """Key by key: ours, the official values, aligned or different for the task or the hardware, and why."""
    from recipes import official

    with reported_errors():
        table = official.compare(recipe, against or ())
        if output is None:
            print(official.page(table), end="")
        else:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(official.page(table), encoding="utf-8")
        if check:
            table.require_reasons()


if __name__ == "__main__":
    typer.run(main)
