"""Using a trained selector: shapes, padding, methods, and refusals with the query's name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pointer_testing import make_policy

from recipes.errors import RecipeError
from recipes.pointer_selector import PointerSelector, checkpoints

RNG = np.random.default_rng(0)
QUERIES, POOL = RNG.normal(size=(4, 6)), RNG.normal(size=(9, 6))


@pytest.fixture
def selector(tmp_path):
    policy = make_policy().float()
    checkpoints.save(tmp_path, 7, policy, 3, None)
    checkpoints.point(tmp_path, "best.json", {"folder": "global_step_7"})
    with pytest.raises(RecipeError, match="no trained selector"):
        PointerSelector.from_pretrained(tmp_path / "nothing")
    made = PointerSelector.from_pretrained(tmp_path, device="cpu")
    assert all(torch.equal(a, b) for a, b in zip(made.policy.parameters(), policy.parameters(), strict=True))
    return made


@pytest.mark.parametrize("method", ["greedy", "beam", "sample"])
def test_picks(selector, method):
    single = selector.select(QUERIES[0], POOL, 3, method=method)
    assert len(set(single)) == 3
    assert selector.select(QUERIES[:1], POOL, 3, method=method) == [single]
    many = selector.select(QUERIES, POOL, 3, method=method)
    assert many == selector.select(torch.tensor(QUERIES), torch.tensor(POOL), 3, method=method)
    assert many == selector.select(QUERIES.tolist(), [POOL.tolist()] * 4, 3, method=method)
    assert len(selector.select(QUERIES[0], POOL, 6, method=method, extrapolate=True)) == 6
    if method == "sample":
        assert len({tuple(selector.select(QUERIES[0], POOL, 3, method=method, seed=seed)) for seed in range(30)}) > 1
    else:
        pools = [POOL[:4], POOL, POOL[2:7], POOL[:3]]
        alone = [selector.select(query, pool, 3, method=method) for query, pool in zip(QUERIES, pools, strict=True)]
        assert selector.select(QUERIES, pools, 3, method=method) == alone


MISTAKES = {
    "query 'a' and its pool have 5 and 6 features; the selector was trained on 6 and 6": {"query": QUERIES[:, :5]},
    "have 6 and 5 features": {"pool": POOL[:, :5]},
    "query 'c'": {"pool": [POOL, POOL, POOL[0], POOL]},
    "embedding of query 'c'": {"query": np.where(np.arange(4)[:, None] == 2, np.nan, QUERIES)},
    "pool of query 'b' has 2 examples, fewer than 3": {"pool": [POOL, POOL[:2], POOL, POOL]},
    "trained for 3 shots, and 4 were asked for": {"shots": 4},
    "trained for 3 shots, and 0": {"shots": 0},
    "no method 'best'": {"method": "best"},
    "4 queries, 4 pools and 1 ids": {"ids": ["a"]},
    "4 queries, 2 pools": {"pool": [POOL, POOL]},
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_named(selector, message):
    with pytest.raises(RecipeError, match=message):
        selector.select(**{"query": QUERIES, "pool": POOL, "shots": 3, "ids": list("abcd")} | MISTAKES[message])
