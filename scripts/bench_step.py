"""Time training steps of a model's shape with random weights: this repository's defaults beside others' examples."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.interpreter import ensure

ensure()

import typer
from rich.console import Console
from rich.table import Table

from recipes.benchmarks import shapes, step
from recipes.config import load
from recipes.data.prepare import make_missing
from recipes.errors import reported_errors
from recipes.paths import artifacts


def main(
    extra: Annotated[list[str] | None, typer.Argument(help="key=value of the launcher, for every run")] = None,
    shape: Annotated[str, typer.Option(help=f"one of {', '.join(shapes.SHAPES)}")] = "qwen3-4b",
    task: Annotated[str, typer.Option(help="recipe whose rows and reward are used")] = "countdown",
    values: Annotated[str, typer.Option(help=f"settings to compare, of {', '.join(step.VALUES)}")] = "ours,easyr1",
    prompts: Annotated[int, typer.Option(help="prompts a step", min=1)] = 32,
    n: Annotated[int, typer.Option(help="responses a prompt", min=2)] = 8,
    max_response: Annotated[int, typer.Option(help="longest response, in tokens", min=1)] = 1024,
    mean_response: Annotated[float, typer.Option(help="average length of responses that nothing cuts off")] = 600.0,
    steps: Annotated[int, typer.Option(help="steps of each run; the first is left out", min=1)] = 3,
    gpus: Annotated[int, typer.Option(help="GPUs that share a step", min=1)] = 1,
    only_model: Annotated[bool, typer.Option(help="write the model, and stop")] = False,
    out: Annotated[Path | None, typer.Option(help="JSON file for the measurements")] = None,
) -> None:
    """Build the model, run the launcher once for each of the settings, and print what it measured."""
    console = Console(highlight=False)
    with reported_errors():
        recipe = load(task, arguments=extra or (), environ={**os.environ, "EXPERIMENT_NAME": "bench_step"})
        make_missing(recipe, console.print)
        folder = artifacts() / "models" / f"random_{shape}"
        if not (folder / "config.json").is_file():
            device = "cuda" if recipe.hardware == "gpu" else "cpu"
            shapes.build(shape, folder, step.prompts(recipe.data.train_files), mean_tokens=mean_response, device=device)
        if only_model:
            console.print(f"{folder}")
            return
        parameters, rate = shapes.parameters(folder), step.matrix_rate()
        console.print(f"{parameters / 1e9:.2f} billion parameters; a matrix product reaches {rate / 1e12:.1f} TFLOP/s")
        runs = [
            step.run(
                name,
                task=task,
                model=folder,
                parameters=parameters,
                prompts=prompts,
                n=n,
                max_response=max_response,
                steps=steps,
                gpus=gpus,
                rate=rate,
                extra=extra or (),
            )
            for name in values.split(",")
        ]
        head, *rows = step.table(runs)
        shown = Table(*head)
        for row in rows:
            shown.add_row(*row)
        console.print(shown)
        if out:
            about = {"shape": shape, "machine": platform.processor(), "matrix_rate": rate, "parameters": parameters}
            out.write_text(step.as_json(runs, {**about, "prompts": prompts, "n": n, "gpus": gpus}), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
