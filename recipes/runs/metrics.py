"""Metrics that the trainer logged, and validations: read, followed while they are written, and brought to one scale."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from statistics import fmean, mean, median
from typing import Any, NamedTuple, TypeVar

from recipes.config import Recipe, objective
from recipes.errors import RecipeError, counted
from recipes.files import Tail, write_whole
from recipes.responses.files import ScoredFile, read_responses
from recipes.statistics import standard_error

KL = ("actor/reward_kl_penalty", "actor/kl_loss")
"""verl's names of the KL in the reward and in the loss; the first that is logged counts."""
SHOWN: dict[str, tuple[str, ...]] = {
    "training score": ("critic/score/mean",),
    "entropy": ("actor/entropy",),
    "KL": KL,
    "grad-norm": ("actor/grad_norm",),
    "response length": ("response_length/mean",),
    "seconds a step": ("timing_s/step",),
}
"""Curve of a run -> verl's metrics, of which the first that is there counts."""
TIMINGS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("generate", ("timing_s/gen",)),
    ("reward", ("timing_s/reward",)),
    ("log-probs", ("timing_s/old_log_prob", "timing_s/ref")),
    ("update", ("timing_s/update_actor",)),
    ("sync", ("timing_s/update_weights",)),
    ("validate", ("timing_s/testing", "timing_s/validation")),
    ("save", ("timing_s/save_checkpoint",)),
)
"""Phase of a step -> the metrics of the seconds that it took, verl's and, for validation, EasyR1's."""

Series = list[tuple[int, float]]
"""(step, value), in order."""


class Step(NamedTuple):
    """The metrics of one step; step 0 is the validation before training."""

    step: int
    data: dict[str, Any]

    def get(self, *names: str) -> float | None:
        """The value of the first of these metrics that the step has as a number."""
        for name in names:
            value = self.data.get(name)
            if isinstance(value, int | float):
                return float(value)
        return None


class MetricsFollower:
    """Copies the lines of an attempt's file, which the trainer writes, to the run's history, `metrics.jsonl`.

    The recipe's loss decides the scale of some metrics (`per_token`).
    """

    def __init__(self, attempt: Path, history: Path, recipe: Recipe | None = None) -> None:
        self._tail, self._history, self._recipe = Tail(attempt), history, recipe

    def poll(self) -> list[Step]:
        """The steps that were completed since the last call; they are in the history when this returns."""
        if not (lines := self._tail.read()):
            return []
        with self._history.open("ab") as history:
            history.writelines(line + b"\n" for line in lines)
        return [per_token(step, self._recipe) for line in lines if (step := _parsed(line))]


def adopt_leftovers(attempts: list[Path], history: Path) -> None:
    """Copy to the history what attempts wrote and no launcher copied, as after a kill; then remove their files."""
    have = set(history.read_bytes().splitlines()) if history.is_file() else set()
    for attempt in attempts:
        with history.open("ab") as file:
            file.writelines(line + b"\n" for line in Tail(attempt).read() if line not in have)
        attempt.unlink()


def read_history(*files: Path) -> list[Step]:
    """Every step once, in order; where a step was written again, the later values win.

    A resumed run validates the step that it starts from: that line adds to the step's training metrics, and replaces
    an earlier validation. A file that is not there has no steps. Incomplete lines and lines without a step are skipped.
    """
    steps: dict[int, Step] = {}
    for file in files:
        for line in file.read_bytes().splitlines() if file.is_file() else ():
            if step := _parsed(line):
                earlier = steps[step.step].data if step.step in steps else {}
                if any(name.startswith("val-") for name in step.data):
                    earlier = {name: value for name, value in earlier.items() if not name.startswith("val-")}
                steps[step.step] = Step(step.step, {**earlier, **step.data})
    return [steps[number] for number in sorted(steps)]


def drop_steps(file: Path, after: int, key: str = "step") -> str:
    """Take the lines of JSON whose step, under this key, is above `after` out of a file, and return them."""
    kept: list[str] = []
    dropped: list[str] = []
    for line in file.read_bytes().splitlines(keepends=True) if file.is_file() else []:
        try:
            discarded = json.loads(line)[key] > after
        except (ValueError, KeyError, TypeError):
            discarded = False
        (dropped if discarded else kept).append(line.decode("utf-8", "replace"))
    if dropped:
        write_whole(file, "".join(kept))
    return "".join(dropped)


def series(history: Iterable[Step], value_of: Callable[[Step], float | None]) -> Series:
    """(step, value) of each trained step that has a finite value."""
    values = ((step.step, value_of(step)) for step in history if step.step)
    return [(step, value) for step, value in values if value is not None and math.isfinite(value)]


AGGREGATED = ("actor/entropy", "actor/kl_loss")
"""Metrics that verl aggregates like the loss over tokens and responses (`agg_loss`, verl/trainer/ppo/core_algos.py)."""


def per_token(step: Step, recipe: Recipe | None) -> Step:
    """The step with entropy and KL in nats a token, so that runs with different losses compare.

    A loss that sums over tokens, as Dr. GRPO's, has verl sum these metrics too. The mean length of the step's responses
    turns the sums back into means; the file keeps verl's values.
    """
    length = step.get("response_length/mean")
    if recipe is None or not length:
        return step
    mode, n = recipe.worker.actor.loss_agg_mode, recipe.worker.rollout.n
    batches = recipe.data.rollout_batch_size, recipe.worker.actor.global_batch_size or 1  # of a step, of an update
    sums: dict[str, list[float]] = {
        "token-sum": [1 / (prompts * n) for prompts in batches],
        "seq-mean-token-sum": [1, 1],
        objective.CONSTANT_LENGTH: [objective.constant_length(recipe) or 1] * 2,
    }
    factors = sums.get(mode, [length, length])
    scales = {name: factor / length for name, factor in zip(AGGREGATED, factors, strict=True)}
    scaled = {name: value * scale for name, scale in scales.items() if (value := step.get(name)) is not None}
    return Step(step.step, {**step.data, **scaled})


MEASURES = {"accuracy": "acc", "score": "reward"}
"""Measure of a validation -> its name in verl's metrics."""


class Validation(NamedTuple):
    """One validation as the trainer logs it; the mean over the questions of all sources is `held_out`."""

    measure: str  # "accuracy", or "score" where the reward states no accuracy
    means: dict[str, float]  # by data source


def validation(step: Step) -> Validation | None:
    """The validation that a step logs as `val-core/<source>/<acc or reward>/mean@<n>`; None where it logs none."""
    for measure, name in MEASURES.items():
        logged = {key: re.fullmatch(rf"val-core/(.+?)/{name}/mean@.*", key) for key in step.data}
        values = ((match[1], step.get(key)) for key, match in logged.items() if match)
        if means := {source: value for source, value in values if value is not None}:
            return Validation(measure, means)
    return None


def seconds(step: Step) -> float:
    """Seconds that a step took, with its validation and its save."""
    return (step.get("timing_s/step") or 0.0) + (step.get("timing_s/testing") or 0.0)


def seconds_left(history: Sequence[Step], total: int | None) -> float | None:
    """Seconds to go, by the last steps; None where that is not known."""
    times = [seconds(step) for step in history[-20:] if step.get("timing_s/step") is not None]
    if not times or total is None:
        return None
    # The mean counts rare long steps, which the median ignores, but over few steps the warm-up would dominate it.
    typical = mean(times) if len(times) > 5 else median(times)
    return max(0, total - history[-1].step) * typical


_OF_UPDATE = {
    "actor/entropy_loss": "actor/entropy",
    "actor/rollout_corr/kl": "rollout_corr/kl",
    "actor/training/rollout_probs_diff_mean": "training/rollout_probs_diff_mean",
}
"""Metric that the update logs where no old-log-prob pass precedes it (worker.actor.recompute_old_log_probs) -> verl's
name for the same metric of that pass."""


def _parsed(line: bytes) -> Step | None:
    try:
        entry = json.loads(line)
        data = dict(entry["data"])
        return Step(int(entry["step"]), {name: data[own] for own, name in _OF_UPDATE.items() if own in data} | data)
    except (ValueError, KeyError, TypeError, OverflowError):  # a step may be written as Infinity
        return None


DUMPS = ("rollouts", "validation")
"""The kinds of dumps, and their folders in a run's."""


def dump_folder(run: Path, recipe: Recipe | None, kind: str) -> Path:
    """The folder of a run's dumps: its own, which is moved and copied with it, or the one that its recipe names."""
    trainer = recipe.trainer if recipe else None
    named = trainer and (trainer.validation_data_dir if kind == "validation" else trainer.rollout_data_dir)
    is_own = not trainer or not named or Path(named).parts[-2:] == (trainer.experiment_name, kind)
    return run / kind if is_own else Path(str(named))


def read_validations(
    run: Path, recipe: Recipe | None, since: int = 0, most: int | None = None
) -> tuple[dict[int, ScoredFile], list[str]]:
    """The validations that compare with the last one, by step, and a note on each other one.

    `since` is the first step with the present reward and questions (`folder.compares_since`). At most `most` are read,
    evenly spaced; None reads all.
    """
    found = dump_folder(run, recipe, "validation").glob("*.jsonl")
    files = dict(sorted((int(file.stem), file) for file in found if file.stem.isdecimal()))
    dumps: dict[int, ScoredFile] = {}
    notes = []
    if earlier := [step for step in files if step < since]:
        what = f"{counted(len(earlier), 'validation')}, the last of step {earlier[-1]}, left out"
        notes.append(f"{what}: the reward or the questions changed after step {since}")
    steps = [step for step in files if step >= since]
    if most and len(steps) > most:
        steps = [steps[round(place * (len(steps) - 1) / (most - 1))] for place in range(most)]
    for step in steps:
        try:
            dumps[step] = read_responses(files[step], images=may_show_images(recipe))
        except RecipeError as error:
            notes.append(f"validation of step {step} left out: {error.what}")
    same = of_last_measure(dumps)
    if others := [str(step) for step in dumps if step not in same]:
        notes.append(f"validations of steps {', '.join(others)} left out: the reward then had another measure")
    return same, notes


def may_show_images(recipe: Recipe | None) -> bool:
    """True where the prompts of a run may have images: also where its recipe is not known."""
    return recipe is None or recipe.worker.rollout.limit_images > 0


class Measured(NamedTuple):
    """One validation over its questions."""

    measure: str  # "accuracy", or "score" where the reward states no accuracy
    value: float  # mean over the questions of all data sources, of each question's mean over its responses
    error: float  # standard error of the mean over the different questions; 0 for a single one, or equal means
    questions: int  # number of questions; 0 where they are not known
    different: int  # number of different ones


Each = TypeVar("Each", ScoredFile, Measured, Validation)


def of_last_measure(validations: Mapping[int, Each]) -> dict[int, Each]:
    """The validations whose measure is the last one's; another reward may have stated none, or one."""
    last = validations[max(validations)].measure if validations else ""
    return {step: each for step, each in validations.items() if each.measure == last}


def measured(run: Path, recipe: Recipe | None, history: Iterable[Step]) -> dict[int, Measured]:
    """Step -> its validation, for the steps in `history` with a complete dump; only changed files are read again."""
    found, folder = {}, dump_folder(run, recipe, "validation")
    for step in (each.step for each in history if validation(each)):
        file = folder / f"{step}.jsonl"
        with suppress(RecipeError, FileNotFoundError):  # being written
            found[step] = _measured(file, file.stat().st_mtime_ns, may_show_images(recipe))
    return found


def held_out(run: Path, recipe: Recipe | None, step: Step) -> Measured | None:
    """A step's validation: of its dump, or as the trainer logged it where there is no dump and one data source.

    None without a validation, and where only means by data source are known: how many questions each has is not.
    """
    if found := measured(run, recipe, [step]).get(step.step):
        return found
    logged = validation(step)
    if logged is None or len(logged.means) > 1:
        return None
    (mean,) = logged.means.values()
    return Measured(logged.measure, mean, 0.0, 0, 0)


@cache
def _measured(file: Path, written_ns: int, images: bool) -> Measured:
    found = read_responses(file, images=images).measures
    error = standard_error(found.values, found.clusters)
    return Measured(found.measure, fmean(found.values), error, len(found.values), found.different)


def number(value: float | None) -> str:
    """A number as text for a line of output; a dash for None."""
    if value is None:
        return "-"
    return f"{value:.1e}" if value != 0 and abs(value) < 1e-3 else f"{value:.3f}"


def duration(seconds: float | None) -> str:
    """Seconds in a readable unit: `40 s`, `12 min`, `3.4 h`; a dash for None."""
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 120 * 60 else f"{seconds / 3600:.1f} h"
