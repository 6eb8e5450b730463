"""verl's reward managers with checked answers; verl loads one by `reward.reward_manager.{source,name,module.path}`.

verl takes whatever a reward returns: NaN becomes an advantage, and a plain number counts as accuracy. Here every answer
is read by `recipes.rewards.contract`, and an error names the row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from verl.experimental.reward_loop.reward_manager.dapo import DAPORewardManager
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
from verl.trainer.ppo import reward

from recipes.dumps import COLUMN
from recipes.rewards.contract import RewardError
from recipes.rewards.function import Call, RewardFunction, with_turns


def checked(function: Callable[..., Any], more: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Wrap a reward, sync or async, for verl: each answer becomes a dict; an answer that breaks the contract raises.

    Args:
        more: further arguments of the reward; the recipe's arguments override them.
    """
    given_by_recipe: Mapping[str, Any] = {}
    verls = (reward._call_with_kwargs, reward._call_with_kwargs_async)
    if isinstance(function, functools.partial) and function.func in verls:
        function, given_by_recipe = function.args[:2]
    reward_function = RewardFunction(function, {**(more or {}), **given_by_recipe})

    def call_of(given: Mapping[str, Any]) -> Call:
        # verl's DAPO manager gives the row's `extra_info` alone.
        return Call(given["data_source"], given["solution_str"], given["ground_truth"], with_turns(given["extra_info"]))

    if reward_function.is_async:

        async def answered_async(**given: Any) -> dict[str, Any]:
            return (await reward_function.score_async(call_of(given))).as_verl()

        return answered_async

    def answered(**given: Any) -> dict[str, Any]:
        return reward_function.score(call_of(given)).as_verl()

    return answered


class _Checked:
    """A manager whose reward is `checked`; where a reward model runs, the reward gets its address and tokenizer."""

    compute_score: Callable[..., Any]
    reward_router_address: str | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = ("reward_router_address", "reward_model_tokenizer")
        judge = {name: getattr(self, name) for name in names if self.reward_router_address is not None}
        self.compute_score = checked(self.compute_score, judge)

    async def run_single(self, data: Any) -> dict[str, Any]:
        """Judge one response. Raises RewardError with the row's id."""
        try:
            return await super().run_single(data)  # type: ignore[misc]  # of verl's manager
        except RewardError as error:
            row = data[-1:].non_tensor_batch.get(COLUMN, ["without an id"])[0]
            raise error.of_row(row) from error.__cause__


class CheckedRewardManager(_Checked, NaiveRewardManager):
    """verl's usual manager."""


class CheckedDapoRewardManager(_Checked, DAPORewardManager):
    """verl's manager with a penalty for long responses, which it adds to the score and never to the accuracy."""
