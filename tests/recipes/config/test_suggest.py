"""The nearest name is the one that was meant."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recipes.config.schema import Recipe, leaves
from recipes.config.text import did_you_mean, edits, nearest

KEYS = list(leaves(Recipe))
WORDS = st.text("abc", max_size=6)


def slow_edits(left: str, right: str) -> int:
    """The recursive definition of the distance."""

    @cache
    def between(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        best = min(between(i - 1, j) + 1, between(i, j - 1) + 1, between(i - 1, j - 1) + (left[i - 1] != right[j - 1]))
        if i > 1 and j > 1 and left[i - 1] == right[j - 2] and left[i - 2] == right[j - 1]:
            best = min(best, between(i - 2, j - 2) + 1)
        return best

    return between(len(left), len(right))


@given(WORDS, WORDS)
@settings(max_examples=200, deadline=None)
def test_edits_agree_with_the_definition(left, right):
    assert edits(left, right) == slow_edits(left, right) == edits(right, left)


@given(st.sampled_from([key for key in KEYS if len(key.rsplit(".", 1)[-1]) > 4]), st.data())
@settings(max_examples=150, deadline=None)
def test_a_key_with_a_letter_missing_is_found(key, data):
    group, _, name = key.rpartition(".")
    at = data.draw(st.integers(0, len(name) - 1))
    slip = f"{group}.{name[:at]}{name[at + 1 :]}".lstrip(".")
    assume(slip not in KEYS)
    found = nearest(slip, KEYS)
    assert found is not None
    # Two keys of a group may be one letter apart each way (top_p, top_k): either is a fair answer.
    assert edits(slip, found) <= edits(slip, key)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("rollout.n", "worker.rollout.n"),
        ("worker.rollout.temprature", "worker.rollout.temperature"),
        ("data.lr", "worker.actor.optim.lr"),
        ("trainer.max_step", "trainer.max_steps"),
        ("worker.rollout.gpu_memory_util", "worker.rollout.gpu_memory_utilization"),
        ("zzz.qqqqqqq", None),
    ],
)
def test_nearest(name, meant):
    assert nearest(name, KEYS) == meant
    assert did_you_mean(name, KEYS) == (f"did you mean {meant}?" if meant else "")
