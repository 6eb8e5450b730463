"""A run from the launcher's side: the steps that it goes on from, and the trainer that is started and watched."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from recipes.config import Recipe, to_yaml
from recipes.engines.checkpoints import withdraw_stop
from recipes.errors import counted
from recipes.paths import ROOT, relative_to_cwd
from recipes.runs import rollout_mismatch
from recipes.runs.best import BestCheckpoint
from recipes.runs.folder import RunFiles, begin_attempt
from recipes.runs.health import Health
from recipes.runs.metrics import MetricsFollower, Step, mark_lost_step, per_token, read_history
from recipes.runs.process import Child, shared_memory_cleared
from recipes.runs.responses import Responses
from recipes.runs.supervise import Limits, Outcome, supervise
from recipes.runs.terminal import Progress

if TYPE_CHECKING:
    from rich.console import Console


def resumed_history(recipe: Recipe, files: RunFiles, last: int, console: Console) -> list[Step]:
    """The steps up to the checkpoint of step `last`. Raises RecipeError where one of them saw another image in vLLM."""
    if not last:
        return []
    if mark_lost_step(files.metrics, last):
        console.print(f"note: step {last} was saved, but the run ended before it logged the step's metrics")
    history = [per_token(step, recipe) for step in read_history(files.metrics) if step.step <= last]
    rollout_mismatch.refuse_checkpoint_after_mismatch(recipe, history)
    return history


def train(
    recipe: Recipe,
    files: RunFiles,
    command: Sequence[str],
    variables: Mapping[str, str],
    history: list[Step],
    total: int | None,
    limits: Limits,
    console: Console,
) -> Outcome:
    """Start the trainer and watch it until it ends.

    Args:
        command: the trainer's argument vector.
        variables: its environment beyond the launcher's own.
        history: the steps that it goes on from.
        total: steps of the run, where known.
        limits: of the watchdog.
    """
    bounds = rollout_mismatch.bounds(recipe, os.environ)
    withdraw_stop(Path(str(recipe.trainer.save_checkpoint_path)))
    offset = begin_attempt(files, to_yaml(recipe), command, variables)
    for note in recipe.unread:  # the last lines before hours of training: a mistyped MAX_STEPS shows in the number
        console.print(f"note: {note}; the run makes {counted(total, 'step') if total else 'all steps'}")
    console.print(f"the trainer's own output goes to {relative_to_cwd(files.log)}")

    written = Responses.of(recipe.trainer, since=time.time())
    on_step: list[Callable[[Step], str | None]] = [
        partial(rollout_mismatch.disagreement, limits=bounds),
        Health(recipe, history, written, console.print).add_step,
        *([BestCheckpoint(recipe, console.print).add_step] if recipe.trainer.keep_best else []),
    ]
    responses = written.training.of if recipe.trainer.rollout_data_dir else None
    with shared_memory_cleared(), Progress(console, total, responses) as progress:
        progress.phase("the trainer starts: Python's imports and Ray")
        return supervise(
            child=Child(command, {**os.environ, **variables}, files.log, ROOT),
            log=files.log,
            offset=offset,
            metrics=MetricsFollower(files.attempt, files.metrics, recipe),
            progress=progress,
            limits=limits,
            on_step=on_step,
        )
