"""Functions for notebooks and pipelines that do what the launchers and `scripts/eval.py` do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from rich.console import Console

from recipes import launch
from recipes.config import load
from recipes.engines.checkpoints import Checkpoint, last_checkpoint
from recipes.errors import RecipeError, did_you_mean
from recipes.evaluation.cli import run_evaluation
from recipes.evaluation.options import Options
from recipes.evaluation.report import Result
from recipes.paths import run_dir
from recipes.runs.metrics import Step, read_history, validations


@dataclass(frozen=True)
class TrainingResult:
    """What `train` returns, for a run that ended or for a dry run."""

    exit_code: int  # the launcher's; 0 where the run, or the dry run, ended without an error
    folder: Path  # `artifacts/runs/<experiment>`
    steps: list[Step]  # the metrics of every step of the experiment, those of earlier attempts included
    checkpoint: Checkpoint | None  # the last one, or None

    @property
    def validations(self) -> dict[str, list[tuple[int, float]]]:
        """Data source -> [(step, value)]: accuracy of its questions, or their score where the reward states none."""
        return {source: values for (_, source), values in validations(self.steps).items()}


def train(
    task: str, keys: Mapping[str, object] | None = None, *, dry_run: bool = False, **options: object
) -> TrainingResult:
    """Train a recipe as its launcher does, and return the results; environment variables act as in the launcher.

    Args:
        task: a recipe in `configs/`, or the path of one.
        keys: dotted keys of docs/CONFIGURATION_REFERENCE.md, such as `{"worker.rollout.n": 8}`.
        dry_run: print what would run, and check it; nothing is trained.
        options: the launcher's options without their dashes, such as `max_steps=1` or `data="my.json"`.

    Raises:
        RecipeError: a mistake that the user can mend, found before the trainer starts.
    """
    arguments = [f"{key}={_typed(key, value)}" for key, value in (keys or {}).items()]
    for name, value in options.items():
        arguments += [f"--{name}", _typed(name, value)]
    task = _typed("task", task or "")
    recipe = load(task, arguments=arguments)
    if dry_run:
        code = launch.show_plan(recipe)
    else:
        code = launch.run(recipe, Console(highlight=False, markup=False, soft_wrap=True), task, arguments)
    folder = run_dir(str(recipe.trainer.experiment_name))
    checkpoint = last_checkpoint(Path(str(recipe.trainer.save_checkpoint_path)))
    return TrainingResult(code, folder, read_history(folder / "metrics.jsonl"), checkpoint)


def evaluate(task: str = "", *, analyse: bool = False, **options: object) -> Result:
    """Measure a model, compare it with its base, or with `analyse` probe it for signal; the report is written too.

    Args:
        task: a recipe in `configs/`; not needed with `run="artifacts/runs/NAME"`.
        analyse: whether this is the signal probe.
        options: those of `scripts/eval.py` without their dashes, such as `model_path="..."`, `limit=100`.

    Raises:
        RecipeError: a mistake that the user can mend.
    """
    known = [field.name for field in fields(Options)]
    if unknown := [name for name in options if name not in known]:
        raise RecipeError(f"unknown option {unknown[0]}", where="evaluate", fix=did_you_mean(unknown[0], known))
    paths = ("run", "data", "filter_out", "output_dir")
    values: dict[str, object] = {
        name: value if isinstance(value, int | float | None) else _typed(name, value) for name, value in options.items()
    }
    values |= {name: Path(str(values[name])) for name in paths if name in values}
    words = [word for word in (_typed("task", task or ""), "analyse" if analyse else "reward") if word]
    chosen = Options(arguments=words, **values)  # type: ignore[arg-type]  # checked where they are read
    return run_evaluation(chosen)[0]


def _typed(name: str, value: object) -> str:
    """A value as text for a command line. Raises RecipeError for one that cannot be typed, such as a function."""
    if isinstance(value, bool) or value is None:
        return str(value).lower().replace("none", "null")
    if isinstance(value, dict):
        return json.dumps(value)
    parts = list(value) if isinstance(value, list | tuple) else [value]
    if not all(isinstance(part, str | int | float | Path) for part in parts):
        raise RecipeError(
            f"{name} is a {type(value).__name__} of Python's, not text, a number or a path",
            where=f"the argument {name}",
            fix="give a path: a recipe or data as a file, a reward as 'file.py' or 'file.py:function'",
        )
    return ",".join(map(str, parts))
