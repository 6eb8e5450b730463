"""The best checkpoint of a run: the saved step with the highest validation, kept as `best/` (`trainer.keep_best`).

verl saves, then validates, then logs: when a step's validation is seen here, its checkpoint is there if the step saves.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path

from recipes.config import Recipe
from recipes.config.rewards import functions
from recipes.engines.checkpoints import best_checkpoint, keep_best, last_checkpoint
from recipes.paths import relative_to_cwd
from recipes.python_files import contents
from recipes.runs.metrics import Step, mean_validation, measure_of, number


class BestCheckpoint:
    """Keeps the checkpoint with the highest mean validation.

    Args:
        recipe: of the run.
        log: prints a line to the user.
    """

    def __init__(self, recipe: Recipe, log: Callable[[str], None]) -> None:
        self._folder, self._log = Path(str(recipe.trainer.save_checkpoint_path)), log
        self._reward = reward_digest(recipe)

    def add_step(self, step: Step) -> None:
        """Keep the step's checkpoint if it was saved and its validation is the highest so far."""
        value, last = mean_validation(step), last_checkpoint(self._folder)
        if value is None or not math.isfinite(value) or last is None or last.step != step.step:
            return
        best, chosen_by = best_checkpoint(self._folder), {"metric": measure_of(step), "reward": self._reward}
        if best and best.chosen_by == chosen_by and value <= best.value:
            return
        try:
            kept = keep_best(last, {**chosen_by, "value": value})
        except OSError as error:
            self._log(f"warning: the best checkpoint, step {step.step}, could not be kept: {error}")
        else:
            shown = f"{measure_of(step)} {number(value)}, kept in {relative_to_cwd(kept)}"
            self._log(f"best so far: step {step.step}, validation {shown}")


def reward_digest(recipe: Recipe) -> str:
    """A digest of the reward: its files, arguments, weights and length penalty."""
    reward = recipe.worker.reward
    parts = [contents(functions(recipe)), reward.reward_function_kwargs, reward.reward_weights]
    return hashlib.sha256(json.dumps([*parts, reward.overlong_buffer.model_dump()], default=str).encode()).hexdigest()
