"""verl's reward function, which calls the user's, and its managers; verl loads both from `pkg://recipes.rewards.verl`.

verl takes whatever a reward returns: NaN becomes an advantage, and a plain number counts as accuracy. Here every answer
is read by `recipes.rewards.contract`, and an error names the row.
"""

import asyncio
import functools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf
from verl.experimental.reward_loop.reward_manager.dapo import DAPORewardManager
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

from recipes.dumps import COLUMN, CONVERSATION
from recipes.rewards.contract import RewardError
from recipes.rewards.function import Call, RewardFunction, load_function, with_turns

ADDRESS, TOKENIZER = "reward_router_address", "reward_model_tokenizer"
"""Arguments of a reward that verl gives where a reward model runs."""


async def compute_score(path: str, arguments: DictConfig, **given: Any) -> dict[str, Any]:
    """The answer of the reward at `file.py` or `file.py:function`, which may have any form. Raises RewardError.

    Args:
        arguments: further arguments of the reward; they override verl's.
        given: verl's arguments of a response, and those of a reward model.
    """
    return await answered(_function(path, arguments, given.get(ADDRESS), given.get(TOKENIZER)), **given)


@functools.lru_cache(maxsize=1)
def _function(path: str, arguments: DictConfig, address: str | None, tokenizer: Any) -> RewardFunction:
    plain: Any = OmegaConf.to_container(arguments, resolve=True)
    return load_function(path, {**({} if address is None else {ADDRESS: address, TOKENIZER: tokenizer}), **plain})


async def answered(
    reward: RewardFunction, *, data_source: str, solution_str: str, ground_truth: Any, extra_info: Any, **_: Any
) -> dict[str, Any]:
    """A reward's answer to verl's arguments, as verl takes it; of a conversation its last turn is judged."""
    extra = with_turns(extra_info)  # verl's DAPO manager gives the row's `extra_info` alone
    if conversation := extra.pop(CONVERSATION, None):
        solution_str = conversation["last_text"]
        extra |= {name: value for name, value in conversation.items() if name != "last_text"}
    call = Call(data_source, solution_str, ground_truth, extra)
    found = await (reward.score_async(call) if reward.is_async else asyncio.to_thread(reward.score, call))
    return found.as_verl()


class _Checked:
    """A manager whose reward is `compute_score`, or one of verl's own, whose answers are checked too."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Callable[..., Any], **judge: Any) -> None:
        given = config.reward.custom_reward_function
        if given.path is None:
            reward = RewardFunction(compute_score)
        else:  # loaded now, and once: to find its arguments again would cost each response a hash of all of them
            own = given.reward_kwargs
            reward = _function(own.path, own.arguments, judge.get(ADDRESS), judge.get(TOKENIZER))
        function = functools.partial(answered, reward)
        super().__init__(config, tokenizer, function, **judge)  # type: ignore[call-arg]  # of verl's manager

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
