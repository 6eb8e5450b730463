"""Keys under `worker.reward`."""

from __future__ import annotations

from typing import Any

from recipes.config.schema.field import Section, key, only_easyr1, only_verl


class OverlongBuffer(Section):
    """DAPO's soft penalty for responses that come close to the limit (arXiv:2503.14476)."""

    enable: bool = key(
        False,
        "lower the score of responses that end inside the buffer",
        verl="reward.reward_kwargs.overlong_buffer_cfg.enable",
        via="rule",
        not_on=only_verl("on EasyR1 the reward function has to do this"),
    )
    len: int | None = key(
        None,
        "tokens before the limit in which the penalty grows; null: a fifth of data.max_response_length, as published",
        verl="reward.reward_kwargs.overlong_buffer_cfg.len",
        via="rule",
        not_on=only_verl("on EasyR1 the reward function has to do this"),
        gt=0,
    )
    penalty_factor: float = key(
        1.0,
        "penalty at the limit",
        verl="reward.reward_kwargs.overlong_buffer_cfg.penalty_factor",
        via="rule",
        not_on=only_verl("on EasyR1 the reward function has to do this"),
        ge=0,
    )
    log: bool = key(
        True,
        "log the penalty",
        verl="reward.reward_kwargs.overlong_buffer_cfg.log",
        via="rule",
        not_on=only_verl("on EasyR1 the reward function has to do this"),
    )


class Reward(Section):
    """The function that scores a response."""

    reward_function: str | None = key(
        None,
        "Python file, or file:function; the function defaults to compute_score (verl) or compute_score_batch (EasyR1)",
        verl=("reward.custom_reward_function.path", "reward.custom_reward_function.name"),
        via="rule",
        path="input",
    )
    reward_function_kwargs: dict[str, Any] = key(
        dict, "further arguments of the function", verl="reward.custom_reward_function.reward_kwargs"
    )
    skip_special_tokens: bool = key(
        True, "decode responses without special tokens", not_on=only_easyr1("verl always leaves them out")
    )
    num_cpus: int = key(
        1,
        "CPUs that Ray reserves for the reward process",
        gt=0,
        not_on=only_easyr1("verl has processes instead: num_workers"),
    )
    num_workers: int = key(
        8, "reward processes", verl="reward.num_workers", gt=0, not_on=only_verl("EasyR1 has one reward process")
    )
    overlong_buffer: OverlongBuffer = OverlongBuffer()
