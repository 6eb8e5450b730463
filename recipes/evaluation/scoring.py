"""Scores of responses, through the reward function that training uses."""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from recipes.config import Recipe
from recipes.config.rewards import WEIGHTED, reward_call
from recipes.evaluation.questions import Question
from recipes.paths import split_function
from recipes.responses.measures import Response, ScoredResponse
from recipes.rewards import easyr1 as easyr1_reward
from recipes.rewards.contract import Answer, RewardError, is_right
from recipes.rewards.function import Call, RewardFunction, load_function, with_turns
from recipes.rewards.identity import reward_digest
from recipes.rewards.loading import load_reward

FLEXIBLE = "flexible"
FAILED = "reward failed"
"""The reason of a response that the reward could not judge."""
REASON = "reason/"
"""Prefix of the parts that name the reason in EasyR1's form: the reason is the part whose value is 1."""


class Reward:
    """A reward file, loaded by path the way the trainer does it (`path` or `path:name`, with its keyword arguments).

    `sha256` is `rewards.identity.reward_digest`: it covers files, functions and arguments.
    """

    def __init__(self, location: str, arguments: dict[str, Any] | None = None, engine: str = "verl") -> None:
        module, self.engine = load_reward(location), engine
        self.path, self.arguments = Path(module.__file__ or location), arguments or {}
        self.function: RewardFunction = load_function(location, self.arguments, engine, module)
        for part in self.arguments["rewards"] if self.path == WEIGHTED else []:
            load_reward(part)  # errors in one are reported before anything is generated
        name = split_function(location)[1]
        self.sha256 = reward_digest(f"{self.path}:{name}" if name else str(self.path), self.arguments, engine)
        # This switch also accepts answers outside a marker, as base models give them; both accuracies are reported.
        named = FLEXIBLE in inspect.signature(self.function.function).parameters and FLEXIBLE not in self.arguments
        self._flexible = load_function(location, {**self.arguments, FLEXIBLE: True}, engine, module) if named else None

    def score(self, question: Question, responses: Sequence[Response]) -> list[ScoredResponse]:
        """The scores of a question's responses, without texts; what the reward cannot judge counts as failed."""
        calls = [self._call(question, response) for response in responses]
        try:
            answers: list[Answer | RewardError] = list(self.function.score_as(self.engine, calls))
        except RewardError:
            answers = [self._alone(self.function, call) for call in calls]
        return [self._scored(*each) for each in zip(calls, responses, answers, strict=True)]

    def _scored(self, call: Call, response: Response, answer: Answer | RewardError) -> ScoredResponse:
        known: Any = {"tokens": response.tokens, "truncated": response.truncated, "logprob": response.logprob}
        if isinstance(answer, RewardError):
            flexible = 0.0 if self._flexible else None
            return ScoredResponse(0.0, 0.0, reason=FAILED, flexible=flexible, failure=str(answer), **known)
        parts = dict(answer.parts)
        named = next((name[len(REASON) :] for name, value in parts.items() if name.startswith(REASON) and value), None)
        right = is_right(answer.accuracy)
        reason = parts.pop("reason", None) or named or ("scored" if right is None else "right" if right else "wrong")
        score = ScoredResponse(answer.score, answer.accuracy, parts, str(reason), **known)
        if self._flexible is None:
            return score
        found = answer if right else self._alone(self._flexible, call)
        return replace(score, flexible=0.0 if isinstance(found, RewardError) else found.accuracy)

    def _call(self, question: Question, response: Response) -> Call:
        """A reward's arguments, as the engine gives them in training."""
        row = question.id or question.row
        if self.engine == "easyr1":
            item = {"response": response.text, "response_length": response.tokens, "ground_truth": question.gold}
            return easyr1_reward.call_of({**item, "id": row}, self.function.form)
        extra = with_turns({**(question.extra_info or {}), **(response.conversation or {})})
        return Call(question.data_source, response.text, question.gold, extra, row=row)

    def _alone(self, function: RewardFunction, call: Call) -> Answer | RewardError:
        try:
            return function.score_as(self.engine, [call])[0]
        except RewardError as error:
            return error


def recipe_reward(recipe: Recipe) -> Reward:
    """The reward that training with a recipe uses."""
    location, arguments = reward_call(recipe) or (
        f"reward_functions/{recipe.name}.py",
        recipe.worker.reward.reward_function_kwargs,
    )
    return Reward(location, arguments, recipe.engine)
