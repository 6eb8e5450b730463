"""Generated word problems: right, in GSM8K's format, disjoint by calculation, the same for the same seed."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice

import pytest

from recipes.errors import RecipeError
from recipes.tasks.gsm8k.problems import TEMPLATES, TINY, WordSettings, generate
from recipes.tasks.gsm8k.rows import count_steps, split_answer

ANNOTATION = re.compile(r"(\d+) ([-+*/]) (\d+) = <<(\d+)([-+*/])(\d+)=(\d+)>>(\d+)")


def drawn(count, buckets=("train",), seed=0, settings=TINY):
    return list(islice(generate(settings, buckets, seed=seed), count))


def calculations(item):
    return tuple(tuple(found[3:7]) for found in ANNOTATION.findall(item.answer))


def test_every_step_is_right_and_the_last_one_is_the_gold():
    for item in drawn(1000):
        steps = ANNOTATION.findall(item.answer)
        assert len(steps) == count_steps(item.answer)
        for a, operator, b, a2, operator2, b2, result, shown in steps:
            assert (a, operator, b, result) == (a2, operator2, b2, shown)
            p, q, r = int(a), int(b), int(result)
            assert {"+": p + q == r, "-": p - q == r, "*": p * q == r, "/": p == q * r}[operator]
            assert 2 <= r <= TINY.max_result
        assert split_answer(item.answer)[1] == steps[-1][-1]
        assert "{" not in item.question + item.answer
        given = {int(n) for n in re.findall(r"\d+", item.question)}
        used = {int(n) for step in steps for n in (step[0], step[2])} - {int(step[6]) for step in steps}
        assert used <= given  # nothing is calculated with that the question does not say
        assert item.question.endswith("?")


def test_templates_and_numbers_of_steps_come_in_equal_shares():
    items = drawn(2400)
    assert len({item.question for item in items}) == 2400
    shares = Counter(item.where for item in items)
    assert len(shares) == len(TEMPLATES)
    steps = Counter(count_steps(item.answer) for item in items)
    assert steps[1] == pytest.approx(1200, abs=150)


def test_buckets_share_no_calculation():
    by_bucket = [{calculations(item) for item in drawn(600, (name,))} for name in ("pretrain", "train", "test")]
    assert not by_bucket[0] & by_bucket[1]
    assert not by_bucket[0] & by_bucket[2]
    assert not by_bucket[1] & by_bucket[2]


def test_same_seed_same_stream():
    assert drawn(200) == drawn(300)[:200]
    assert drawn(200) != drawn(200, seed=1)


def test_exhausted_settings_are_an_error(monkeypatch):
    with pytest.raises(RecipeError, match="after 0 different ones"):
        drawn(1, buckets=())
    monkeypatch.setattr("recipes.tasks.gsm8k.problems.NAMES", ("Ada", "Ben"))
    monkeypatch.setattr("recipes.tasks.gsm8k.problems.ITEMS", ("nuts",))
    monkeypatch.setattr("recipes.tasks.gsm8k.problems.BOXES", ("bags",))
    found = []
    with pytest.raises(RecipeError, match="no further word problem"):
        found.extend(generate(WordSettings(steps=(1,), max_number=3, max_result=6), ("train", "test"), seed=0))
    assert len(found) == len({item.question for item in found}) > 10


@pytest.mark.parametrize(
    "wrong", [{"min_number": 1}, {"max_number": 1}, {"steps": (3,)}, {"train_size": 0}, {"test_buckets": ("train",)}]
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(RecipeError):
        WordSettings(**wrong)
