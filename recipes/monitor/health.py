"""The health rules while a run goes on: a line where a rule begins to object, and where it no longer does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from recipes.config import Recipe
from recipes.monitor.metrics import Step
from recipes.monitor.rollouts import Rollouts
from recipes.monitor.rules import Status, evidence, findings


class Health:
    """Judges a run after each step.

    Args:
        recipe: of the run.
        history: its steps up to the checkpoint that it goes on from.
        log: prints a line to the user.
    """

    def __init__(self, recipe: Recipe, history: Sequence[Step], log: Callable[[str], None]) -> None:
        folder = recipe.trainer.rollout_data_dir
        self._recipe, self._history, self._log = recipe, list(history), log
        self._rollouts = Rollouts(Path(folder) if folder else None)
        self._known: dict[str, Status] = {}

    def saw(self, step: Step) -> None:
        """Take in a step's metrics, and say what changed."""
        self._history.append(step)
        steps = [each.step for each in self._history if "timing_s/step" in each.data]
        recent = self._rollouts.of(steps[-4 * self._recipe.monitor.window :])
        for finding in findings(evidence(self._history, self._recipe, recent)):
            name, before = finding.rule.name, self._known.get(finding.rule.name, "ok")
            self._known[name] = finding.status
            if finding.alarming and finding.status != before:
                self._log(finding.line())
            elif before in ("warning", "failure") and not finding.alarming:
                self._log(f"passed: {finding.rule.name}: {finding.evidence}")
