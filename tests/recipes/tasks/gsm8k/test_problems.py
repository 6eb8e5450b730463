"""Gold numbers in one spelling, and generated word problems: right, disjoint by calculation, the same for a seed."""

import re
from decimal import Decimal
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.tasks.gsm8k.problems import (
    LARGEST_RESULT,
    TEMPLATES,
    Question,
    canonical,
    rows,
    split_answer,
    word_problems,
)
from tests.mistakes import mistake

ANNOTATION = re.compile(r"(\d+) ([-+*/]) (\d+) = <<(\d+)([-+*/])(\d+)=(\d+)>>(\d+)")


@pytest.mark.parametrize(
    ("tail", "gold"),
    [
        ("72", "72"),
        (" 12,345,678 ", "12345678"),
        (" $18.", "18"),
        (" 2.50", "2.5"),
        (" 007", "7"),
        (" 3? No.\n#### 4", None),
    ],
)
def test_gold_numbers_have_one_spelling_and_the_last_mark_counts(tail, gold):
    solution = "First 1 + 1 = <<1+1=2>>2.\nSo."
    expected = (solution, gold) if gold else (f"{solution}\n#### 3? No.", "4")
    assert split_answer(f"{solution}\n####{tail}") == expected


@pytest.mark.parametrize(
    ("question", "answer"),
    [("", "#### 1"), (" ", "#### 1"), (None, "#### 1"), ("1?", None), ("1?", 1), ("1?", ""), ("1?", "1")],
)
def test_a_row_without_a_question_or_a_numbered_answer_is_named(question, answer):
    given = [Question("1?", "#### 1", "row 0"), Question(question, answer, "row 1")]
    assert mistake(lambda: list(rows(given, "train"))).where == "row 1"


@given(st.decimals(-(10**9), 10**9, places=3))
def test_canonical_keeps_the_value_and_is_its_own_canonical(value):
    once = canonical(f"{value:,f}")
    assert (Decimal(once), canonical(once)) == (value, once)
    assert not ("." in once and once.endswith(("0", ".")))


def drawn(count, buckets=("train",), seed=0):
    return list(islice(word_problems(buckets, seed=seed), count))


def test_every_step_is_right_and_the_last_one_is_the_gold():
    items = drawn(2400)
    for item, row in zip(items, rows(items, "train"), strict=True):
        steps = ANNOTATION.findall(item.answer)
        assert len(steps) == row["extra_info"]["num_steps"]
        for a, operator, b, a2, operator2, b2, result, shown in steps:
            assert (a, operator, b, result) == (a2, operator2, b2, shown)
            p, q, r = int(a), int(b), int(result)
            assert {"+": p + q == r, "-": p - q == r, "*": p * q == r, "/": p == q * r}[operator]
            assert 2 <= r <= LARGEST_RESULT
        assert split_answer(item.answer)[1] == steps[-1][-1]
        assert "{" not in item.question + item.answer
        stated = {int(n) for n in re.findall(r"\d+", item.question)}
        used = {int(n) for step in steps for n in (step[0], step[2])} - {int(step[6]) for step in steps}
        assert used <= stated  # nothing is calculated with that the question does not state
    assert len({item.question for item in items}) == 2400
    assert len({item.where for item in items}) == len(TEMPLATES)
    assert items[:200] == drawn(200) != drawn(200, seed=1)


def test_buckets_share_no_calculation():
    def calculations(bucket):
        return {tuple(found[3:7] for found in ANNOTATION.findall(item.answer)) for item in drawn(600, (bucket,))}

    pretrain, train, test = map(calculations, ("pretrain", "train", "test"))
    assert pretrain.isdisjoint(train | test)
    assert train.isdisjoint(test)
