"""`python -m tools.pointer_study`: train the arms that are missing, then write sweep.json, sweep.md and sweep.svg."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from recipes.errors import RecipeError, reported_errors
from recipes.paths import relative_to_cwd, run_dir
from recipes.pointer_selector.config import resolve
from recipes.pointer_selector.evaluation import accuracies, baseline_results
from recipes.pointer_selector.preparation import prepare
from tools.pointer_study import report, sweep


def main(
    settings: Annotated[list[str] | None, typer.Argument(help="key=value, what the arms vary around")] = None,
    seeds: Annotated[int, typer.Option(help="seeds of every arm, from 1 on")] = 3,
    only: Annotated[str, typer.Option(help="arms to run and show, as patterns, such as 'main/*|GRPO lr/*'")] = "*",
    against: Annotated[str, typer.Option(help="the arm that the others are compared with")] = "main/recipe",
    jobs: Annotated[int, typer.Option(help="processes at once; 0: this one")] = 2,
    folder: Annotated[Path | None, typer.Option(help="trials; default artifacts/runs/pointer_selector_sweep")] = None,
    out: Annotated[Path | None, typer.Option(help="where the results go; default: the trials' folder")] = None,
    render: Annotated[bool, typer.Option("--render", help="only make table and figure from what is there")] = False,
) -> None:
    """Train the arms that are missing, then write sweep.json, sweep.md and sweep.svg of those asked for."""
    console = Console(highlight=False, soft_wrap=True)
    with reported_errors():
        recipe = resolve(settings or [])
        folder = folder or run_dir("pointer_selector_sweep")
        prepared = prepare(recipe)
        arms, every_seed = sweep.arms(recipe, only), range(1, 1 + seeds)
        trials = {f"{name}, seed {seed}": arm.with_seed(seed) for name, arm in arms.items() for seed in every_seed}
        for name, result in () if render else sweep.run_missing(trials, folder, jobs):
            console.print(f"{name}: test {report.over_shots(result.test):.1%}, {result.seconds:.0f} s", markup=False)
        finished = sweep.results(arms, every_seed, folder)
        if not finished:
            raise RecipeError("no trial of this recipe is finished", where=str(folder), fix="drop --render")
        test = prepared.parts["test"]
        baselines = accuracies(baseline_results(test, prepared.model, recipe.validation.shots))
        out = out or folder
        words = [*(settings or []), "--only", only, "--seeds", str(seeds), "--against", against]
        words += ["--out", str(relative_to_cwd(out))]
        command = f"python -m tools.pointer_study {shlex.join(words)}"
        report.write(finished, baselines, against, command, len(test), out)
        console.print(f"wrote {out / 'sweep.md'}, sweep.json and sweep.svg: {len(finished)} arms")


if __name__ == "__main__":
    typer.run(main)
