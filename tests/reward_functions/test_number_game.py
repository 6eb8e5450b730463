"""The number game's reward, and where EasyR1's first-digit rule decides otherwise; verdicts.txt has more."""

from __future__ import annotations

import pytest

from recipes.data.rewards import load_reward

number_game = load_reward("reward_functions/number_game.py")
easyr1 = load_reward("tests/reward_functions/public_graders.py").easyr1_number_game


def score(response: str, gold: object = "2", **kwargs) -> dict:
    return number_game.compute_score("number_game", response, gold, **kwargs)


# Where EasyR1's rule (the first 0, 1 or 2 anywhere is the answer) decides otherwise, and where not: response, the right
# position, ours, EasyR1's. docs/REWARD_NUMBER_GAME.md has the same list in words.
AGAINST_EASYR1 = [
    ("10, 4, 7. Answer: 2", "2", 1, 0), ("The cards show 1, 5, 9, the light is green. Answer: 2", "2", 1, 0),
    ("The cards show 1, 5, 9, the light is green. Answer: 2", "1", 0, 1),
    ("Round 2: red light, smallest is 3 on the left. Answer: 0", "0", 1, 0),
    ("0 is left, 1 is middle, 2 is right. <answer>1</answer>", "1", 1, 0), ("Not 0. Answer: 1", "0", 0, 1),
    ("<think>It may be 1, or", "1", 0, 1), ("Answer: 1. No, wait. Answer: 2", "2", 1, 0), ("0 1 2", "0", 0, 1),
    ("12", "1", 0, 1), ("-1", "1", 0, 1), ("Answer: 7, since 7 > 2", "2", 0, 1), ("level1 done", "1", 0, 1),
    ("2", "2", 1, 1), ("I choose option 2", "2", 0, 1), ("Answer: 1", "1", 1, 1), ("0", "1", 0, 0), ("", "0", 0, 0),
]  # fmt: skip


@pytest.mark.parametrize(("response", "gold", "ours", "theirs"), AGAINST_EASYR1)
def test_against_easyr1(response, gold, ours, theirs):
    assert (score(response, gold)["accuracy"], easyr1(response) == gold) == (ours, theirs)
