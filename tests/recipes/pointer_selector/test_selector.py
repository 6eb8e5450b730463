"""Using a trained selector: shapes, padding, methods, and refusals with the query's name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pointer_testing import make_policy

from recipes.errors import RecipeError
from recipes.pointer_selector import PointerSelector, checkpoints


@pytest.fixture
def folder(tmp_path):
    checkpoints.save(tmp_path, 7, make_policy().float(), 3, None)
    checkpoints.point(tmp_path, "best.json", {"folder": "global_step_7"})
    return tmp_path


@pytest.fixture
def selector(folder):
    return PointerSelector.from_pretrained(folder)


RNG = np.random.default_rng(0)
QUERIES, POOL = RNG.normal(size=(4, 6)), RNG.normal(size=(9, 6))


def test_a_saved_policy_is_the_same_policy(folder, selector):
    again = PointerSelector.from_pretrained(folder / "global_step_7", device="cpu")
    assert all(torch.equal(a, b) for a, b in zip(again.policy.parameters(), selector.policy.parameters(), strict=True))
    assert (again.shot_num, again.policy.training) == (3, False)


def test_one_query_gives_a_list_and_several_a_list_of_lists(selector):
    one = selector.select(QUERIES[0], POOL, 3)
    assert sorted(set(one)) == sorted(one)
    assert len(one) == 3
    many = selector.select(QUERIES, POOL, 3)
    assert many[0] == one
    assert many == selector.select(torch.tensor(QUERIES), torch.tensor(POOL), 3)
    assert many == selector.select(QUERIES.tolist(), POOL.tolist(), 3)


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_pools_of_different_sizes_do_not_disturb_each_other(selector, method):
    pools = [POOL[:4], POOL, POOL[2:7], POOL[:3]]
    together = selector.select(QUERIES, pools, 3, method=method)
    alone = [selector.select(query, pool, 3, method=method) for query, pool in zip(QUERIES, pools, strict=True)]
    assert together == alone
    assert selector.select(QUERIES, np.stack([POOL] * 4), 2) == selector.select(QUERIES, POOL, 2)


def test_samples_depend_on_the_seed(selector):
    draws = {tuple(selector.select(QUERIES[0], POOL, 3, method="sample", seed=seed)) for seed in range(30)}
    assert len(draws) > 1
    assert selector.select(QUERIES, POOL, 3, method="sample", seed=4) == selector.select(
        QUERIES, POOL, 3, method="sample", seed=4
    )


MISTAKES = {
    "width": (
        {"query": QUERIES[:, :5]},
        "query 'a' and its pool have 5 and 6 features; the selector was trained on 6 and 6",
    ),
    "pool width": ({"pool": POOL[:, :5]}, "have 6 and 5 features"),
    "flat pool": ({"pool": [POOL, POOL, POOL[0], POOL]}, "query 'c'"),
    "nan": ({"query": np.where(np.arange(4)[:, None] == 2, np.nan, QUERIES)}, "embedding of query 'c'"),
    "small pool": ({"pool": [POOL, POOL[:2], POOL, POOL]}, "pool of query 'b' has 2 examples, fewer than 3"),
    "shots": ({"shots": 4}, "trained for 3 shots, and 4 were asked for"),
    "no shots": ({"shots": 0}, "trained for 3 shots, and 0"),
    "method": ({"method": "best"}, "no method 'best'"),
    "ids": ({"ids": ["a"]}, "4 queries, 4 pools and 1 ids"),
    "pools": ({"pool": [POOL, POOL]}, "4 queries, 2 pools"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(selector, name):
    values, message = MISTAKES[name]
    arguments = {"query": QUERIES, "pool": POOL, "shots": 3, "ids": list("abcd")} | values
    with pytest.raises(RecipeError, match=message):
        selector.select(**arguments)


def test_more_shots_than_trained_for_on_request(selector):
    assert len(selector.select(QUERIES[0], POOL, 6, extrapolate=True)) == 6


def test_nothing_to_load(tmp_path):
    with pytest.raises(RecipeError, match="no trained selector"):
        PointerSelector.from_pretrained(tmp_path)
