"""`python scripts/preflight.py TASK [--option value] [key=value]`: every check before a start, and nothing else."""

import os
from typing import Annotated

import typer
from rich.console import Console

from recipes import preflight
from recipes.config import load
from recipes.data.custom import ready
from recipes.errors import RecipeError, raise_together, reported_errors
from recipes.preflight.plan import show

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(context_settings={"ignore_unknown_options": True})
def main(
    task: Annotated[str, typer.Argument(help="a recipe in configs/, or the path of one")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="--option value or key=value, as for a launcher; --gpus 1x24 plans for a GPU of 24 GB that is not here"
        ),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="print one screen on the run: memory, minutes, commands")
    ] = False,
) -> None:
    """Check a recipe, its data, model, reward and this machine, without starting the trainer."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    with reported_errors():
        recipe = load(task, arguments=overrides or ())
        if plan:
            raise typer.Exit(show(console, recipe, task, os.environ, overrides or ()))
        console.print(preflight.heading(recipe))
        planned = recipe.resolution.planned_gpus is not None
        notes = preflight.check_before_data(recipe, plan_only=planned)
    try:
        recipe = ready(recipe, console.print, make=False)
    except RecipeError as error:
        result = preflight.dry(recipe, skip=("data",))
        result.errors.append(error)
    else:
        result = preflight.dry(recipe, skip=())
    for remark in [*notes, *result.remarks]:
        console.print(f"note: {remark}")
    if result.skipped:
        console.print(f"not checked: {', '.join(result.skipped)}")
    with reported_errors():
        raise_together(result.errors)
    console.print("it fits" if planned else "ready: every check passed")
