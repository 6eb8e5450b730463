"""Sweep the pointer selector: arms around the recipe times seeds, one table, one figure; resumable."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.interpreter import ensure

ensure()

import typer
from rich.console import Console

from recipes.errors import RecipeError, reported_errors
from recipes.paths import ROOT, run_dir
from recipes.pointer_selector.resolve import resolve

RESULTS = ROOT / "docs" / "results" / "pointer_selector"


def main(
    settings: Annotated[list[str] | None, typer.Argument(help="key=value, what the arms vary around")] = None,
    seeds: Annotated[int, typer.Option(help="seeds of every arm, from 1 on")] = 3,
    main_seeds: Annotated[int, typer.Option(help="seeds of the arms main/*")] = 5,
    only: Annotated[str, typer.Option(help="arms to run and show, as patterns, such as 'main/*|GRPO lr/*'")] = "*",
    jobs: Annotated[int, typer.Option(help="processes at once; 0: this one")] = 2,
    gpu_jobs: Annotated[int, typer.Option(help="how many of them use the GPU, if there is one")] = 2,
    minutes: Annotated[float, typer.Option(help="start no trial after so many minutes; 0: no limit")] = 0.0,
    folder: Annotated[Path | None, typer.Option(help="study; default artifacts/runs/pointer_selector_sweep")] = None,
    checkpoints: Annotated[Path | None, typer.Option(help="checkpoints of the trials; default: in the folder")] = None,
    out: Annotated[Path, typer.Option(help="where table, figure and JSON go")] = RESULTS,
    render: Annotated[bool, typer.Option("--render", help="only make table and figure from what is there")] = False,
) -> None:
    """Run the arms that are missing, then write sweep.json, sweep.md and sweep.svg of those asked for."""
    console = Console(highlight=False, soft_wrap=True)
    with reported_errors():
        recipe = resolve(settings or [])
        from recipes.pointer_selector import sweep, sweep_report
        from recipes.pointer_selector.arms import arms
        from recipes.pointer_selector.evaluation import baseline_results
        from recipes.pointer_selector.preparation import prepare

        folder = folder or run_dir("pointer_selector_sweep")
        prepared = prepare(recipe)
        study = sweep.open_study(folder)
        every = arms(recipe, only)
        seeds_of = {a.name: list(range(1, 1 + (main_seeds if a.factor == "main" else seeds))) for a in every}
        if not render:
            started = time.perf_counter()

            def told(name: str, result: dict, left: int) -> None:
                mean = sum(result["test"].values()) / len(result["test"])
                clock = f"{time.perf_counter() - started:5.0f} s, {left:3d} left"
                console.print(f"[{clock}] {name}: test {mean:.1%}, {result['seconds']:.0f} s", markup=False)

            wanted = [(f"{a.name}, seed {s}", sweep.of_seed(a.recipe, s)) for a in every for s in seeds_of[a.name]]
            workers = sweep.Workers(jobs, gpu_jobs, 60 * minutes if minutes else float("inf"))
            sweep.sweep(study, wanted, checkpoints or folder / "checkpoints", workers, told)
        found = sweep.of_arms(study, every, seeds_of)
        if not found:
            raise RecipeError("the study has no finished trial of this recipe", where=str(folder), fix="drop --render")
        test = prepared.parts["test"]
        baselines = {
            name: {str(s): float(r.correct.mean()) for s, r in by.items()}
            for name, by in baseline_results(test, prepared.judge, recipe.validation.shots).items()
        }
        pairs = sweep_report.comparisons(found, baselines)
        out.mkdir(parents=True, exist_ok=True)
        rows = sweep_report.summary(found)
        content = {
            "recipe": recipe.model_dump(),
            "test_queries": len(test),
            "baselines": baselines,
            "arms": rows,
            "pairs": pairs,
        }
        (out / "sweep.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        asked = shlex.join([*(settings or []), "--only", only, "--seeds", str(seeds), "--main-seeds", str(main_seeds)])
        command = f"Made by `python scripts/sweep_pointer_selector.py {asked}`.\n\n"
        (out / "sweep.md").write_text(command + sweep_report.markdown(rows, baselines, pairs), encoding="utf-8")
        sweep_report.figure(found, baselines, out / "sweep.svg")
        console.print(f"wrote {out / 'sweep.md'}, sweep.json and sweep.svg: {len(rows)} arms")


if __name__ == "__main__":
    typer.run(main)
