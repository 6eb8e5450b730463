"""verl's reward managers with checked answers; verl loads one by `reward.reward_manager.{source,name,module.path}`.

verl takes whatever a reward returns: NaN becomes an advantage, and a plain number counts as accuracy. Here every answer
is read by `recipes.rewards.contract`, and an error names the row.
"""

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from verl.experimental.reward_loop.reward_manager.dapo import DAPORewardManager
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
from verl.trainer.ppo import reward

from recipes.dumps import COLUMN, CONVERSATION
from recipes.rewards.contract import RewardError
from recipes.rewards.function import Call, RewardFunction, with_turns


def checked(function: Callable[..., Any], more: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Wrap a reward, sync or async, for verl: each answer becomes a dict; an answer that breaks the contract raises.

    `more` has further arguments of the reward; the recipe's override them.
    """
    given_by_recipe: Mapping[str, Any] = {}
    verls = (reward._call_with_kwargs, reward._call_with_kwargs_async)
    if isinstance(function, functools.partial) and function.func in verls:
        function, given_by_recipe = function.args[:2]
    reward_function = RewardFunction(function, {**(more or {}), **given_by_recipe})

    def call_of(given: Mapping[str, Any]) -> Call:
        # verl's DAPO manager gives the row's `extra_info` alone.
        extra, response = with_turns(given["extra_info"]), given["solution_str"]
        if conversation := extra.pop(CONVERSATION, None):
            response = conversation["last_text"]
            extra |= {name: value for name, value in conversation.items() if name != "last_text"}
        return Call(given["data_source"], response, given["ground_truth"], extra)

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
        """Judge one response; of one with calls the model's last turn. Raises RewardError with the row's id."""
        conversation = data[-1:].non_tensor_batch.get("tool_extra_fields", [{}])[0].get(CONVERSATION)
        if conversation:
            extra = {**data[-1].non_tensor_batch.get("extra_info", {}), CONVERSATION: conversation}
            data.non_tensor_batch["extra_info"] = np.array([extra] * len(data), dtype=object)
        try:
            judged: dict[str, Any] = await super().run_single(data)  # type: ignore[misc]  # of verl's manager
        except RewardError as error:
            row = data[-1:].non_tensor_batch.get(COLUMN, ["without an id"])[0]
            raise error.of_row(row) from error.__cause__
        if conversation:  # verl averages numbers over a validation and leaves texts alone
            shown = {name: value for name, value in conversation.items() if name != "last_text"}
            judged["reward_extra_info"] |= shown | {"turns": json.dumps(conversation["turns"], ensure_ascii=False)}
        return judged


class CheckedRewardManager(_Checked, NaiveRewardManager):
    """verl's usual manager."""


class CheckedDapoRewardManager(_Checked, DAPORewardManager):
    """verl's manager with a penalty for long responses, which it adds to the score and never to the accuracy."""
