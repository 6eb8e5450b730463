"""Pretrain a tiny model: `python -m tools.tiny_models countdown`, `gsm8k`, `number_game` or `custom`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from recipes.errors import RecipeError, reported_errors
from tools.tiny_models.countdown import Countdown
from tools.tiny_models.custom import Custom
from tools.tiny_models.gsm8k import GSM8K
from tools.tiny_models.number_game import NumberGame
from tools.tiny_models.pretrain import PretrainPlan, Spec, run
from tools.tiny_models.text_models import SIZES, TextPlan

SPECS: dict[str, type[Spec[Any]]] = {spec.name: spec for spec in (Countdown, GSM8K, NumberGame, Custom)}
GROUPS = ("annotators", "players")
"""Fields of a plan whose own fields are options; `shape` and `settings` belong to the shipped configuration."""


def plan_values(plan: PretrainPlan) -> dict[str, int | float]:
    """The plan's numbers by option: `--lr`, `--steps`, and of the annotators `--hasty`."""
    values: dict[str, int | float] = {}
    for field in dataclasses.fields(plan):
        value = getattr(plan, field.name)
        if field.name in GROUPS:
            values |= dataclasses.asdict(value)
        elif isinstance(value, int | float):
            values[field.name] = value
    return values


def changed_plan(plan: PretrainPlan, given: dict[str, Any]) -> PretrainPlan:
    """The plan with these values."""
    changes = {name: given[name] for name in given if hasattr(plan, name)}
    for name in GROUPS:
        if group := getattr(plan, name, None):
            fields = {field.name for field in dataclasses.fields(group)}
            changes[name] = dataclasses.replace(group, **{key: given[key] for key in fields & given.keys()})
    return dataclasses.replace(plan, **changes)


def sized(plan: PretrainPlan, size: str) -> PretrainPlan:
    """Return the plan with a size's shape and learning rate. Raises RecipeError for an unknown size."""
    if size == "tiny" or not isinstance(plan, TextPlan):
        return plan
    if size not in SIZES:
        raise RecipeError(f"unknown size {size!r}", where="--size", fix=f"use tiny, or one of {', '.join(SIZES)}")
    shape, lr = SIZES[size]
    return dataclasses.replace(plan, shape=shape, lr=lr)


def command(task: str) -> Callable[..., None]:
    """The command of one task: the trainer's options, and one for each number of its plan."""
    spec = SPECS[task]

    def main(
        out: Annotated[Path | None, typer.Option(help="New folder; default artifacts/models/<task>_tiny.")] = None,
        device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
        stop: Annotated[int | None, typer.Option(min=1, help="End after this step.")] = spec.stop,
        compiled: Annotated[bool, typer.Option("--compile", help="Twice as fast on a CPU with a compiler.")] = False,
        commit: Annotated[str, typer.Option(help="For the manifest, outside a checkout.")] = "",
        problems: Annotated[int, typer.Option(min=1, help="Held-out problems to assess on.")] = spec.problems,
        screenshots: Annotated[
            Path | None, typer.Option(help="number_game: folder with train.parquet and test.parquet, one screen size.")
        ] = None,
        size: Annotated[str, typer.Option(help=f"tiny, or {', '.join(SIZES)} parameters for a GPU.")] = "tiny",
        **given: Any,
    ) -> None:
        with reported_errors():
            made = NumberGame(screenshots) if spec is NumberGame else spec()
            shipped = plan_values(made.plan)
            asked = {name: value for name, value in given.items() if value != shipped[name]}
            plan = changed_plan(sized(made.plan, size), asked)
            run(made, plan, out=out, device=device, stop=stop, compiled=compiled, commit=commit, problems=problems)

    main.__doc__ = f"Train {spec.what.split(',')[0]} from scratch. An interrupted run goes on where it was."
    signature = inspect.signature(main, eval_str=True)
    options = [one for one in signature.parameters.values() if one.name != "given"]
    own = "size" if spec is NumberGame else "screenshots"
    options = [one for one in options if one.name != own]
    for name, value in plan_values(spec.plan).items():
        least = 0 if isinstance(value, float) or name in ("seed", "reading") else 1
        annotation: Any = Annotated[type(value), typer.Option(f"--{name}", min=least)]
        options.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=annotation))
    options = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in options]
    main.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]  # inspect reads it
    main.__annotations__ = {one.name: one.annotation for one in options}
    return main


def application() -> typer.Typer:
    """A command for each task."""
    app = typer.Typer(add_completion=False, help=__doc__)
    for task in SPECS:
        app.command(task)(command(task))
    return app


if __name__ == "__main__":
    application()()
