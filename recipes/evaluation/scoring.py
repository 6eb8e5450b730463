"""Scores of responses, through the reward file that training uses."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.config.rewards import WEIGHTED, reward_call
from recipes.data.rewards import load_reward
from recipes.engines.reward_contract import Contract, is_right
from recipes.errors import RecipeError
from recipes.evaluation.questions import Question
from recipes.python_files import awaited, contents, split_function

if TYPE_CHECKING:
    from recipes.config import Recipe

FLEXIBLE = "flexible"


@dataclass(frozen=True, slots=True)
class Score:
    """One response's reward.

    Attributes:
        value: what training sees.
        accuracy: in [0, 1]; 1 or 0 where the reward reports none.
        right: whether its accuracy is 1.
        reason: the reward's code for it.
        flexible: accuracy where an answer outside a marker counts too; None where the reward has no such switch.
        parts: whatever else the reward reports.
    """

    value: float
    accuracy: float
    right: bool
    reason: str
    parts: dict[str, Any] = field(default_factory=dict)
    flexible: float | None = None


def as_score(result: Any, where: str) -> Score:
    """A reward's result, a dict or a number, as a `Score`; a `RecipeError` where it has no finite score."""
    answer = Contract(as_score).read(result, where)
    right = answer.score >= 1.0 if answer.accuracy is None else bool(is_right(answer.accuracy))
    parts = dict(answer.parts)
    reason = parts.pop("reason", None)
    accuracy = float(right) if answer.accuracy is None else answer.accuracy
    return Score(answer.score, accuracy, right, str(reason or ("right" if right else "wrong")), parts)


class Reward:
    """A reward file, loaded by path the way the trainer does it (`path` or `path:name`, with its keyword arguments).

    `sha256` is of all that decides its scores: the file, what it takes from its own folder, and the function's name; of
    several rewards, those of each.
    """

    def __init__(self, location: str, arguments: dict[str, Any] | None = None) -> None:
        module, name = load_reward(location), split_function(location)[1] or "compute_score"
        self.path, self.arguments = Path(module.__file__ or location), arguments or {}
        function = getattr(module, name, None)
        if function is None:
            raise RecipeError(
                f"{self.path} has no function {name}", where="--reward_path", fix="name it: path:function"
            )
        self._score: Callable[..., Any] = function
        parts = self.arguments["rewards"] if self.path == WEIGHTED else []
        for part in parts:
            load_reward(part)  # what is wrong with one is said before anything is generated
        files = contents([f"{self.path}:{name}", *parts])
        self.sha256 = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
        # The switch for answers outside a marker, as base models give them; both figures stand side by side.
        self._has_switch = FLEXIBLE in inspect.signature(self._score).parameters and FLEXIBLE not in self.arguments

    def score(self, question: Question, text: str) -> Score:
        """The score of one response to a question."""
        return self.score_raw(question.data_source, text, question.ground_truth, question.extra_info)

    def score_raw(self, data_source: str, text: str, ground_truth: str, extra_info: dict[str, Any]) -> Score:
        """`score` from the four values that verl hands to a reward."""
        result = self._call(data_source, text, ground_truth, extra_info=extra_info, **self.arguments)
        score = as_score(result, str(self.path))
        if not self._has_switch:
            return score
        if score.right:
            return replace(score, flexible=score.accuracy)
        result = self._call(
            data_source, text, ground_truth, extra_info=extra_info, **self.arguments, **{FLEXIBLE: True}
        )
        return replace(score, flexible=as_score(result, str(self.path)).accuracy)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        """What the reward returns, plain or async."""
        result = self._score(*args, **kwargs)
        return awaited(result) if inspect.iscoroutine(result) else result


def recipe_reward(recipe: Recipe) -> Reward:
    """The reward that training with a recipe uses."""
    location, arguments = reward_call(recipe) or (
        f"reward_functions/{recipe.name}.py",
        recipe.worker.reward.reward_function_kwargs,
    )
    return Reward(location, arguments)
