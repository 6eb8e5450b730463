"""Reward functions as people bring them from TRL: what they are called with, and what their answers count."""

from __future__ import annotations

import json

import pytest

from recipes.engines.reward_contract import RewardError
from recipes.engines.reward_function import Call, RewardFunction

CHAT = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}, {"role": "user", "content": "5?"}]


def score(function, prompt="2 + 2?", response="4", truth="", fields=None, **arguments):
    extra = {"asked": json.dumps(prompt), "solution": "", "id": "a", "fields": json.dumps(fields) if fields else ""}
    return RewardFunction(function, arguments).score(Call("mine", response, truth, extra)).score


def test_a_text_gives_texts_and_a_conversation_gives_messages():
    seen = []

    def reward(prompts, completions, **columns):
        seen.append((prompts, completions, columns["level"], columns["ground_truth"]))
        return [float(len(completions))]

    assert score(reward, truth="4", fields={"level": 3}) == 1.0
    assert score(reward, CHAT, fields={"level": [1]}) == 1.0
    messages = [[{"role": "assistant", "content": "4"}]]
    assert seen == [(["2 + 2?"], ["4"], [3], ["4"]), ([CHAT], messages, [[1]], [""])]


def test_none_counts_nothing_and_an_async_reward_is_awaited():
    async def reward(completions, answer, bonus=0.0):
        return [None if answer[0] is None else bonus + float(completions[0] == answer[0])]

    assert score(reward, fields={"answer": "4"}, bonus=0.5) == 1.5
    assert score(reward, fields={"answer": None}) == 0.0


@pytest.mark.parametrize("answer", [1.0, [], [1.0, 2.0], ["right"], [float("nan")], None])
def test_an_answer_that_is_no_list_of_one_number_is_refused(answer):
    def reward(completions, **columns):
        return answer

    with pytest.raises(RewardError) as caught:
        score(reward)
    assert "test_trl_reward" in caught.value.where


def test_rows_of_another_origin_are_refused():
    def reward(completions, **columns):
        return [1.0]

    with pytest.raises(RewardError, match="ENGINE=verl"):
        RewardFunction(reward).score(Call("mine", "4", "4", {}))
