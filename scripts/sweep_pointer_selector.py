"""Sweep the pointer selector: arms around the recipe times seeds, one table, one figure; resumable."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import typer
from rich.console import Console

from recipes.errors import RecipeError, reported_errors
from recipes.paths import ROOT, run_dir
from recipes.pointer_selector.resolve import resolve, to_yaml

RESULTS = ROOT / "docs" / "results" / "pointer_selector"


def main(
    settings: Annotated[list[str] | None, typer.Argument(help="key=value, what the arms vary around")] = None,
    seeds: Annotated[int, typer.Option(help="seeds of every arm, from 1 on")] = 3,
    main_seeds: Annotated[int, typer.Option(help="seeds of the arms main/*")] = 5,
    only: Annotated[str, typer.Option(help="arms to run, as a pattern, for instance 'GRPO lr/*'")] = "*",
    jobs: Annotated[int, typer.Option(help="processes at once")] = 2,
    folder: Annotated[
        Path | None, typer.Option(help="study and checkpoints; default artifacts/runs/pointer_selector_sweep")
    ] = None,
    out: Annotated[Path, typer.Option(help="where table, figure and JSON go")] = RESULTS,
    render: Annotated[bool, typer.Option("--render", help="only make table and figure from what is there")] = False,
) -> None:
    """Run the arms that are missing, then write sweep.json, sweep.md and sweep.svg."""
    console = Console(highlight=False, soft_wrap=True)
    with reported_errors():
        recipe = resolve(settings or [])
        from recipes.pointer_selector import sweep, sweep_report
        from recipes.pointer_selector.arms import arms
        from recipes.pointer_selector.evaluation import baseline_results
        from recipes.pointer_selector.preparation import prepare
        from recipes.pointer_selector.resolve import changed

        folder = folder or run_dir("pointer_selector_sweep")
        prepared = prepare(recipe)
        study = sweep.open_study(folder)
        started = time.perf_counter()
        counts = {arm.name: main_seeds if arm.factor == "main" else seeds for arm in arms(recipe)}
        if not render:
            for wanted in sorted(set(counts.values())):
                chosen = [arm for arm in arms(recipe, only) if counts[arm.name] == wanted]

                def told(name: str, result: dict, left: int) -> None:
                    mean = sum(result["test"].values()) / len(result["test"])
                    console.print(
                        f"[{time.perf_counter() - started:5.0f} s, {left:3d} left] {name}: test {mean:.1%}, {result['seconds']:.0f} s"
                    )

                if chosen:
                    sweep.sweep(study, chosen, list(range(1, wanted + 1)), folder / "checkpoints", jobs, told)
        current = {
            arm.name: {sweep.digest(arm.recipe, seed) for seed in range(1, counts[arm.name] + 1)}
            for arm in arms(recipe)
        }
        found = sweep_report.by_arm(sweep.results(study), current)
        if not found:
            raise RecipeError(
                "the study has no finished trial of this recipe", where=str(folder), fix="run it without --render"
            )
        test = prepared.parts["test"]
        baselines = {
            name: {str(s): float(r.correct.mean()) for s, r in by.items()}
            for name, by in baseline_results(test, prepared.judge, recipe.validation.shots).items()
        }
        names = (sweep_report.BOTH, sweep_report.ALONE, sweep_report.RCE, sweep_report.LONG)
        pairs = [sweep_report.paired_over_seeds(found, a, b) for a in names[:2] for b in names[2:]]
        pairs = [pair for pair in pairs if pair]
        out.mkdir(parents=True, exist_ok=True)
        rows = sweep_report.summary(found)
        content = {
            "recipe": changed(recipe, {"trainer.experiment_name": "sweep"}).model_dump(
                exclude={"data": {"candidates"}}
            ),
            "test_queries": len(test),
            "baselines": baselines,
            "arms": rows,
            "pairs": pairs,
        }
        (out / "sweep.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        (out / "sweep.md").write_text(sweep_report.markdown(rows, baselines, pairs), encoding="utf-8")
        (folder / "recipe.yaml").write_text(to_yaml(recipe), encoding="utf-8")
        sweep_report.figure(found, baselines, out / "sweep.svg")
        console.print(f"wrote {out / 'sweep.md'}, sweep.json and sweep.svg: {len(rows)} arms")


if __name__ == "__main__":
    typer.run(main)
