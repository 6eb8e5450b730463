"""The best checkpoint of a run, and its end before the last step where nothing is gained any more.

verl saves, then validates, then logs. When a step's metric is seen here, its checkpoint is there if the step saves: it
may become the best one, and the run may end at once. Otherwise the trainer is asked to end after its next save
(`engines/checkpoint_callbacks.py`), so that no step is lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from recipes.config import Recipe, path_keys
from recipes.config.checks import EARLY_STOP_VALIDATION as VALIDATION
from recipes.data.rows import data_sources
from recipes.engines.checkpoints import best_checkpoint, keep_best, last_checkpoint, request_stop, withdraw_stop
from recipes.errors import counted, did_you_mean
from recipes.monitor.progress import number
from recipes.paths import relative_to_cwd
from recipes.runs.metrics import Step, mean_validation


@dataclass(frozen=True)
class Standing:
    """Progress of a metric.

    Attributes:
        best, step: the value that counts as best, and its step; None before the first value.
        waited: values since then that did not gain `min_delta`.
    """

    best: float | None = None
    step: int = 0
    waited: int = 0


def standing(values: Iterable[tuple[int, float]], min_delta: float, now: Standing = Standing()) -> Standing:
    """Return where a metric stands after more values, each with its step; one that is not finite is no gain."""
    for step, value in values:
        gained = math.isfinite(value) and (now.best is None or value > now.best + min_delta)
        now = Standing(value, step, 0) if gained else Standing(now.best, now.step, now.waited + 1)
    return now


class EarlyStop:
    """Keeps the best checkpoint of a run, and says when the run has gained nothing for long enough.

    Args:
        recipe: of the run.
        history: its steps up to the checkpoint that it goes on from.
        log: prints a line to the user.
    """

    def __init__(self, recipe: Recipe, history: Sequence[Step], log: Callable[[str], None]) -> None:
        self._keys, self._keep, self._log = recipe.trainer.early_stop, recipe.trainer.keep_best, log
        self._folder = Path(str(recipe.trainer.save_checkpoint_path))
        values = ((step.step, value) for step in history if (value := self._value(step)) is not None)
        self._standing = standing(values, self._keys.min_delta)
        self._missed = self._asked = False
        withdraw_stop(self._folder)

    @property
    def reason(self) -> str | None:
        """Return why the run is to end; None while it goes on."""
        now = self._standing
        if self._keys.patience is None or now.waited < self._keys.patience:
            return None
        best = "no finite value" if now.best is None else f"best {number(now.best)} at step {now.step}"
        return f"{self._keys.metric} has not gained for {counted(now.waited, 'value')} ({best})"

    def add_step(self, step: Step) -> str | None:
        """Take in a step's metrics. Returns why the run is to end now; None while it goes on or has to save first."""
        value = self._value(step)
        if value is None:
            self._warn_if_missing(step)
            return None
        before, self._standing = self.reason, standing([(step.step, value)], self._keys.min_delta, self._standing)
        if self._keep:
            self._keep_if_best(step.step, value)
        if self.reason is None:
            if self._asked:  # and not the user, by `python scripts/monitor.py stop`
                withdraw_stop(self._folder)
                self._asked = False
            return None
        last = last_checkpoint(self._folder)
        if last and last.step == step.step:
            withdraw_stop(self._folder)
            return self.reason
        request_stop(self._folder)
        self._asked = True
        if before is None:
            self._log(f"{self.reason}: the run ends after its next save")
        return None

    def _value(self, step: Step) -> float | None:
        metric = self._keys.metric
        return mean_validation(step) if metric == VALIDATION else step.get(metric)

    def _keep_if_best(self, step: int, value: float) -> None:
        last, best = last_checkpoint(self._folder), best_checkpoint(self._folder)
        if last is None or last.step != step or not math.isfinite(value) or (best and value <= best[1]):
            return
        try:
            kept = keep_best(last, {"metric": self._keys.metric, "value": value})
        except OSError as error:
            self._log(f"warning: the best checkpoint, step {step}, could not be kept: {error}")
        else:
            self._log(f"best so far: step {step}, {self._keys.metric} {number(value)}, kept in {relative_to_cwd(kept)}")

    def _warn_if_missing(self, step: Step) -> None:
        validated = mean_validation(step) is not None
        if (self._keep or self._keys.patience) and validated and "val-core/" in self._keys.metric and not self._missed:
            self._missed = True
            there = [name for name in step.data if name.startswith("val-core/")]
            hint = did_you_mean(self._keys.metric, there) or f"it has {', '.join(there)}"
            self._log(f"warning: the validation has no {self._keys.metric}, so the run is not ended early: {hint}")


def check_early_stop(recipe: Recipe) -> list[str]:
    """Raise where the metric names a data source that the validation does not have; runs when the data is there."""
    keys = recipe.trainer.early_stop
    if not (recipe.trainer.keep_best or keys.patience) or not keys.metric.startswith("val-core/"):
        return []
    source = keys.metric.split("/")[1]
    there = sorted(data_sources(key.path for key in path_keys(recipe) if key.key == "data.val_files"))
    if there and source not in there:
        raise recipe.error(
            f"{keys.metric} never appears: the validation has no data source {source!r}",
            did_you_mean(source, there) or f"use one of {', '.join(there)}, or {VALIDATION}",
            "trainer.early_stop.metric",
        )
    return []
