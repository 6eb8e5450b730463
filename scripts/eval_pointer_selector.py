"""Evaluate a trained pointer selector against the baselines, its warm-up and other runs, with paired tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.interpreter import ensure

ensure()

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from recipes.errors import reported_errors
from recipes.paths import checkpoint_dir
from recipes.pointer_selector.resolve import resolve


def main(
    settings: Annotated[list[str] | None, typer.Argument(help="key=value of the recipe that was trained")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="a checkpoint, or an experiment's folder; default: the recipe's")
    ] = None,
    against: Annotated[
        list[Path] | None, typer.Option(help="another checkpoint to test against; may be repeated")
    ] = None,
    part: Annotated[str, typer.Option(help="queries to use: test or validation")] = "test",
    out: Annotated[Path | None, typer.Option(help="write the figures to this JSON file as well")] = None,
) -> None:
    """Right answers at each number of shots, and paired tests with Holm's correction over all of them."""
    console = Console(highlight=False, soft_wrap=True)
    with reported_errors():
        recipe = resolve(settings or [])
        from recipes.pointer_selector.evaluation import evaluate

        folder = checkpoint or checkpoint_dir(recipe.trainer.experiment_name)
        found = evaluate(recipe, folder, against or [], part)
        shots = recipe.validation.shots
        table = Table(title=f"right answers on {found.queries:,} {part} queries", title_justify="left")
        for column in ("", *(f"{count}-shot" for count in shots)):
            table.add_column(column, justify="right" if column else "left")
        for name, by_shots in found.results.items():
            table.add_row(name, *(f"{by_shots[s].correct.mean():.1%}" if s in by_shots else "" for s in shots))
        console.print(table)
        title = "paired tests: difference in points, 95% interval by query image, McNemar with Holm"
        tests = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))  # 80 columns
        for column in ("a - b", "shots", "points", "95% interval", "only a / b", "p (Holm)"):
            tests.add_column(column, justify="left" if column == "a - b" else "right", no_wrap=True)
        for c in found.comparisons:
            t = c.test
            interval = f"{100 * t.low:+.1f} to {100 * t.high:+.1f}"
            tests.add_row(
                f"{c.a} - {c.b}",
                str(c.shots),
                f"{100 * t.difference:+.1f}",
                interval,
                f"{t.a_only} / {t.b_only}",
                f"{c.p_holm:.2g}",
            )
        console.print(tests)
        if found.trained_for < max(shots):
            console.print(f"the selector was trained for {found.trained_for} shots; more than that is extrapolation")
        if out:
            out.write_text(json.dumps(found.as_dict(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
