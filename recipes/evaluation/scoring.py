"""Scores of responses, through the reward file that training uses."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError
from recipes.evaluation.questions import Question

FULL_MARKS = 1.0 - 1e-9


@dataclass(frozen=True, slots=True)
class Score:
    """One response's reward: `value` is what training sees, `accuracy` is in [0, 1], `reason` a code of the reward."""

    value: float
    accuracy: float
    reason: str
    parts: dict[str, Any] = field(default_factory=dict)

    @property
    def full(self) -> bool:
        """Whether the response got full marks."""
        return self.value >= FULL_MARKS


class Reward:
    """A reward file, loaded by path the way the trainer does it (`path` or `path:name`, with its keyword arguments)."""

    def __init__(self, location: str, arguments: dict[str, Any] | None = None) -> None:
        from recipes.data.rewards import load_reward

        module, name = load_reward(location), location.partition(":")[2] or "compute_score"
        self.path, self.arguments = Path(module.__file__ or location), arguments or {}
        self._score = getattr(module, name, None)
        if self._score is None:
            raise RecipeError(
                f"{self.path} has no function {name}", where="--reward_path", fix="name it: path:function"
            )
        self.sha256 = hashlib.sha256(self.path.read_bytes()).hexdigest()

    def score(self, question: Question, text: str) -> Score:
        """The score of one response; a result that is not finite or has no score is a `RecipeError`."""
        return self.score_raw(question.data_source, text, question.ground_truth, question.extra_info)

    def score_raw(self, data_source: str, text: str, ground_truth: str, extra_info: dict[str, Any]) -> Score:
        """`score` from the four values that verl hands to a reward."""
        result = self._score(data_source, text, ground_truth, extra_info=extra_info, **self.arguments)
        parts = dict(result) if isinstance(result, dict) else {"score": result}
        value = parts.pop("score", None)
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise RecipeError(f"the reward returned {result!r}, which has no finite score", where=str(self.path))
        full = float(value >= FULL_MARKS)
        reason = str(parts.pop("reason", "right" if full else "wrong"))
        return Score(float(value), float(parts.pop("accuracy", full)), reason, parts)
