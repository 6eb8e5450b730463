"""Short answers: SQuAD's published rules, and Chinese."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.data.rewards import load_reward

graders = load_reward("tests/reward_functions/public_graders.py")

dispatch = load_reward("reward_functions/dispatch.py")
qa = dispatch.judges.qa
VERL = graders.verl_grader("search_r1_like_qa_em")


PIECES = [
    "The", "a", "an", "cat", "CAT", "sat,", "U.S.", "-", "--", "’", "don't", "1,000", "é", "ü.", "'a'", "  ", "12",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=8).map(" ".join) | st.text(
    st.characters(max_codepoint=0x2FFF), max_size=12
)


@settings(max_examples=200, deadline=None)
@given(prediction=TEXTS, gold=TEXTS)
def test_as_squad_v1_1_wherever_there_are_words(prediction, gold):
    assert qa.normalised(prediction) == VERL.normalize_answer(prediction)
    if qa.normalised(prediction) and qa.normalised(gold):
        exact, f1 = qa.judge(prediction, (gold,))
        assert exact is bool(VERL.em_check(prediction, gold))
        assert f1 == pytest.approx(graders.squad_f1(prediction, gold))


@pytest.mark.parametrize(
    ("prediction", "gold", "exact", "f1"),
    [
        ("Denver Broncos", "the Denver Broncos!", True, 1.0), ("Broncos", "Denver Broncos", False, 2 / 3),
        ("中国北京", "北京", False, 2 / 3), ("上海", "北京", False, 0.0),
        ("C++", "C", True, 1.0), ("A", "the", False, 0.0),
    ],
)  # fmt: skip
def test_words_and_ideographs(prediction, gold, exact, f1):
    assert qa.judge(prediction, (gold,)) == (exact, pytest.approx(f1))
