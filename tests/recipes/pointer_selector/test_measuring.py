"""What validation counts, and what it says where a number is missing."""

from __future__ import annotations

import numpy as np
import pytest
from pointer_testing import make_policy, write_data

from recipes.errors import RecipeError
from recipes.pointer_selector.config import PointerRecipe
from recipes.pointer_selector.data import read_data
from recipes.pointer_selector.measuring import Validator, measure
from recipes.pointer_selector.resolve import changed


@pytest.fixture
def data(tmp_path):
    path, table = write_data(tmp_path)
    return read_data(path, table, table)


def test_without_a_model_the_most_likely_logged_candidate_counts(data):
    policy = make_policy().float()
    (found,) = measure(policy, data, None, [2, 3])  # nothing is logged for 3
    assert found.shots == 2
    table = measured_by_hand(policy, data, 2)
    assert found.correct.tolist() == [table[query] for query in found.queries]


def measured_by_hand(policy, data, shots):
    from recipes.pointer_selector.measuring import logged_log_probs

    total = logged_log_probs(policy, data, 3).sum(-1).numpy()
    outcome = {}
    for query in range(len(data)):
        rows = np.flatnonzero((data.candidate_query == query) & (data.lengths == shots))
        outcome[query] = data.scores["vqa_correct"][rows[total[rows].argmax()]]
    return outcome


@pytest.mark.parametrize(("metric", "number"), [("accuracy", "vqa_correct"), ("probability", "vqa_gt_prob")])
def test_a_missing_number_is_named_only_where_it_counts(data, metric, number):
    data.scores[number][data.candidate_query == 5] = np.nan
    other = {"accuracy": "probability", "probability": "accuracy"}[metric]
    policy = make_policy().float()

    def validate(what):
        recipe = changed(PointerRecipe(), {"validation.metric": what, "data.shot_num": 2})
        return Validator(recipe, data, data, None)(policy)

    with pytest.raises(RecipeError, match=f"query '5' has a candidate without {number}"):
        validate(metric)
    assert 0 < validate(other)[1] < 1
