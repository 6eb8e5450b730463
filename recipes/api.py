"""Functions for notebooks and pipelines that do what the launchers and `scripts/eval.py` do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from recipes import launch
from recipes.config import load
from recipes.engines.checkpoints import Checkpoint, last_checkpoint
from recipes.errors import RecipeError, abbreviated, unknown
from recipes.evaluation.cache import evaluations
from recipes.evaluation.cli import run_evaluation
from recipes.evaluation.options import Options
from recipes.evaluation.report import Result
from recipes.from_python import function_location, rows_file
from recipes.paths import relative_to_cwd, run_dir
from recipes.runs.metrics import Step, of_last_measure, read_history, validation

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class TrainingResult:
    """The results of `train`, for a run that ended or for a dry run."""

    exit_code: int  # the launcher's; 0 where the run, or the dry run, ended without an error
    folder: Path  # `artifacts/runs/<experiment>`
    steps: list[Step]  # the metrics of every step of the experiment, those of earlier attempts included
    checkpoint: Checkpoint | None  # the last one, or None

    @property
    def validations(self) -> dict[str, list[tuple[int, float]]]:
        """Data source -> [(step, value)]: accuracy of its questions, or their score where the reward states none."""
        logged = of_last_measure({step.step: found for step in self.steps if (found := validation(step))})
        sources = dict.fromkeys(source for each in logged.values() for source in each.means)
        return {
            source: [(step, each.means[source]) for step, each in logged.items() if source in each.means]
            for source in sources
        }

    @property
    def history(self) -> pandas.DataFrame:
        """The metrics of the steps, a row for each step and a column for each metric; NaN where a step has it not."""
        import pandas

        frame = pandas.DataFrame([step.data for step in self.steps])
        return frame.set_index(pandas.Index([step.step for step in self.steps], name="step"))

    def __repr__(self) -> str:
        """The outcome, the first and last validation of each data source, and the checkpoint."""
        step = self.steps[-1].step if self.steps else 0
        lines = [f"{relative_to_cwd(self.folder)}: step {step}, exit code {self.exit_code}"]
        for source, values in self.validations.items():
            ends = " -> ".join(f"{value:.3f} (step {at})" for at, value in dict.fromkeys((values[0], values[-1])))
            lines.append(f"validation {source}: {ends}")
        if self.checkpoint:
            lines.append(f"checkpoint {relative_to_cwd(self.checkpoint.folder)}")
        return "\n".join(lines)


def train(
    task: str, keys: Mapping[str, object] | None = None, *, dry_run: bool = False, **options: object
) -> TrainingResult:
    """Train a recipe as its launcher does, and return the results; environment variables act as in the launcher.

    Args:
        task: a recipe in `configs/`, or the path of one.
        keys: dotted keys of docs/CONFIGURATION_REFERENCE.md, such as `{"worker.rollout.n": 8}`.
        dry_run: print what would run, and check it; nothing is trained.
        options: the launcher's options without their dashes, such as `max_steps=1` or `data="my.json"`. `data` and
            `val_data` also take rows (`rows_file`), and `reward_func` functions, alone or in a list
            (`function_location`); they are written to `python` in the run's folder.

    Raises RecipeError for a mistake that the user can mend, found before the trainer starts.
    """
    task = _typed("task", task or "")
    if not isinstance(keys, Mapping | None):
        fix = 'give a mapping, such as {"worker.rollout.n": 8}'
        raise RecipeError(f"keys is {abbreviated(keys)}", where="the argument keys", fix=fix)
    unwritten = load(task, arguments=_words(keys or {}, options, None))
    folder = run_dir(unwritten.experiment) / "python"
    arguments = _words(keys or {}, options, folder, lambda: unwritten.data.image_key)
    recipe = load(task, arguments=arguments)
    console = Console(highlight=False, markup=False, soft_wrap=True, force_jupyter=False)  # lines, also in a notebook
    code = launch.show_plan(recipe) if dry_run else launch.run(recipe, console, task, arguments)
    folder = run_dir(recipe.experiment)
    checkpoint = last_checkpoint(Path(str(recipe.trainer.save_checkpoint_path)))
    return TrainingResult(code, folder, read_history(folder / "metrics.jsonl"), checkpoint)


def evaluate(task: str = "", *, analyse: bool = False, **options: object) -> Result:
    """Measure a model, compare it with its base, or with `analyse` probe it for signal; the report is written too.

    Args:
        task: a recipe in `configs/`; not needed with `run="artifacts/runs/NAME"`.
        analyse: whether this is the signal probe.
        options: those of `scripts/eval.py` without their dashes, such as `model_path="..."`, `limit=100`; `data` and
            `reward_func` as in `train`, written to `artifacts/evaluations/python`.

    Raises RecipeError for a mistake that the user can mend.
    """
    known, values = [field.name for field in fields(Options)], dict[str, Any]()
    for name, given in options.items():
        if name not in known:
            raise unknown("option", name, known, "evaluate")
        value = _filed(name, given, evaluations() / "python", partial(_image_key, task, options.get("run")))
        values[name] = value if isinstance(value, int | float | None) else _typed(name, value)
        if name in ("run", "data", "filter_out", "output_dir") and value is not None:
            values[name] = Path(str(values[name]))
    words = [word for word in (_typed("task", task or ""), "analyse" if analyse else "reward") if word]
    result, folder = run_evaluation(Options(arguments=words, **values))
    print(f"report: {relative_to_cwd(folder / 'report.html')}")
    return result


def _image_key(task: object, run: object) -> str:
    """The column of pictures in the rows of a task, or of a run that is evaluated."""
    config = Path(str(run)) / "config.yaml"
    if run and config.is_file():
        return load(str(config), environ={}).data.image_key
    return load(_typed("task", task)).data.image_key if task and not run else "images"


def _words(
    keys: Mapping[str, object],
    options: Mapping[str, object],
    folder: Path | None,
    image_key: Callable[[], str] = str,
) -> list[str]:
    """The command line of keys and options, whose functions and rows are written below `folder`."""
    words = [f"{key}={_word(key, _filed(key, value, folder, image_key))}" for key, value in keys.items()]
    for name, value in options.items():
        words += [f"--{name}", _word(name, _filed(name, value, folder, image_key))]
    return words


def _word(name: str, value: object) -> str:
    """A value as text of a command line, where lists stand in brackets: an engine's own key cannot tell a list else."""
    text = _typed(name, value)
    return json.dumps(value, default=str) if isinstance(value, list | tuple) else text


def _filed(name: str, value: object, folder: Path | None, image_key: Callable[[], str]) -> object:
    """A value with its functions and rows as files below `folder`; where that is None, as a name of no file.

    `image_key` is asked for the column of pictures where there are rows.
    """
    values = value if isinstance(value, list | tuple) else [value]
    if "reward_func" in name and any(map(callable, values)):
        return [(function_location(each, folder) if folder else name) if callable(each) else each for each in values]
    are_paths = bool(values) and all(isinstance(each, str | Path | None) for each in values)
    if name.endswith(("data", "_files")) and not are_paths and isinstance(value, Iterable):
        return rows_file(value, folder, image_key()) if folder else name
    return value


def _typed(name: str, value: object) -> str:
    """A value as text for a command line. Raises RecipeError for one that cannot be typed, such as a function."""
    if isinstance(value, bool) or value is None:
        return str(value).lower().replace("none", "null")
    if isinstance(value, dict):
        return json.dumps(value, default=lambda each: _typed(name, each))
    parts = list(value) if isinstance(value, list | tuple) else [value]
    if not all(isinstance(part, str | int | float | Path) for part in parts):
        what = f"{name} is a {type(value).__name__} of Python's, not text, a number or a path"
        fix = "give a path, such as that of a recipe; data may be rows as well, a reward a function"
        raise RecipeError(what, where=f"the argument {name}", fix=fix)
    return ",".join(map(str, parts))
