"""Rewards against a slow reference, their scales, and the numbers that they need."""

from __future__ import annotations

import numpy as np
import pytest
from pointer_testing import write_data

from recipes.errors import RecipeError
from recipes.pointer_selector.config import RewardConfig
from recipes.pointer_selector.data import read_data
from recipes.pointer_selector.rewards import NEEDS, equal_groups, require_differences, rescaled, rewards


@pytest.fixture
def data(tmp_path):
    path, table = write_data(tmp_path)
    return read_data(path, table, table)


def slowly(data, row, mode, alpha, beta, quality):
    """The reward of one candidate, from the words of the documentation."""
    score = {name: float(values[row]) for name, values in data.scores.items()}
    group = [
        float(data.scores[quality][other])
        for other in range(len(data.lengths))
        if data.candidate_query[other] == data.candidate_query[row] and data.lengths[other] == data.lengths[row]
    ]
    q = (score[quality] - min(group)) / (max(group) - min(group)) if max(group) > min(group) else 0.5
    return {
        "combined": alpha * q + beta * score["vqa_correct"],
        "hard_soft": alpha * score["vqa_acc_score"] + beta * score["vqa_correct"],
        "separated": alpha * score["vqa_acc_score"] + (2 * beta if score["vqa_correct"] else 0),
        "correctness": beta * score["vqa_correct"],
        "probability": alpha * score["vqa_gt_prob"],
        "quality": alpha * q,
    }[mode]


@pytest.mark.parametrize("mode", NEEDS)
@pytest.mark.parametrize("quality", ["beam_score", "logprob_score"])
def test_rewards_equal_the_slow_reference(data, mode, quality):
    found = rewards(data, RewardConfig(mode=mode, alpha=0.7, beta=1.5, quality=quality))
    expected = [slowly(data, row, mode, 0.7, 1.5, quality) for row in range(len(data.lengths))]
    assert found.tolist() == pytest.approx(expected, rel=1e-5)
    assert found.dtype == np.float32


def test_separated_rewards_leave_a_gap(data):
    found = rewards(data, RewardConfig(mode="separated", alpha=1.0, beta=1.0))
    right = data.scores["vqa_correct"] > 0
    assert found[right].min() >= 2.0
    assert found[~right].max() <= 1.0


def test_quality_has_the_scale_of_correctness_whatever_its_unit(data):
    config = RewardConfig(mode="quality", alpha=1.0)
    before = rewards(data, config)
    data.scores["beam_score"][:] = data.scores["beam_score"] * 1e-6 - 40
    after = rewards(data, config)
    assert (before.min(), before.max()) == (0.0, 1.0)
    assert np.abs(after - before).max() < 1.0
    assert after.min() >= 0.0


def test_equal_qualities_are_worth_a_half():
    assert rescaled(np.array([3.0, 3.0, 1.0, 2.0]), np.array([0, 2, 4])).tolist() == [0.5, 0.5, 0.0, 1.0]


def test_a_missing_number_names_the_query(data):
    data.scores["vqa_gt_prob"][9] = np.nan
    with pytest.raises(RecipeError, match="1 candidates have no vqa_gt_prob, the first of them in query '1'"):
        rewards(data, RewardConfig(mode="probability"))
    rewards(data, RewardConfig(mode="correctness"))


def test_groups_with_equal_rewards_are_found_and_all_of_them_are_refused(data):
    values = rewards(data, RewardConfig(mode="probability"))
    assert len(equal_groups(values, data)) == 0
    starts, group = data.group_starts, 5
    values[starts[group] : starts[group + 1]] = 0.25
    assert equal_groups(values, data).tolist() == [group]
    require_differences(values, data, "probability")
    with pytest.raises(RecipeError, match="each of the 24 groups all rewards are equal, in query '0'"):
        require_differences(np.ones_like(values), data, "probability")


def test_a_single_candidate_is_a_group_with_equal_rewards(data):
    alone = data.keep_candidates(np.isin(np.arange(len(data.lengths)), data.group_starts[:-1]))
    assert len(equal_groups(rewards(alone, RewardConfig(mode="probability")), alone)) == 24
