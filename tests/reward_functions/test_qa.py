"""Short answers and labels: SQuAD's published rules, Chinese, and labels that hide in other words."""

from __future__ import annotations

from functools import partial

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
    assert qa.normalised(prediction) == graders.squad_normalised(prediction) == VERL.normalize_answer(prediction)
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


SENTIMENT = {
    "label": "positive",
    "labels": ["positive", "negative", "neutral"],
    "aliases": {"positive": ["pos", "正面"]},
}


HARD = (
    *("<answer>", "</answer>", "\\boxed{", "{", "}", "####", "answer is ", "答案是", "中", "a ", "positive ", "not "),
    *(" ", "\n", "<think>", "</think>", "\\text{", "$", "'", "n't", "<|im_end|>", "\ud800", "B. ", "1"),
)


@pytest.mark.parametrize("source", ["math_reasoning", "qa", "classification"])
def test_linear_time_on_adversarial_text(source, cpu_seconds):
    truth = {"math_reasoning": "x + 1", "qa": ["a b", "中国"], "classification": SENTIMENT}[source]
    for piece in HARD:
        for wrap in ("{}", "<answer>{}</answer>", "answer: {}"):
            text = wrap.format(piece * (30_000 // len(piece)))
            assert cpu_seconds(partial(dispatch.compute_score, source, text, truth), enough=0.2) < 0.2, (piece, wrap)
