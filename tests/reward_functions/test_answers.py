"""The one rule for stated answers: every task reads by it; verdicts.txt has more."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.rewards.loading import load_reward

dispatch = load_reward("reward_functions/dispatch.py")

# source -> (truth, its right statement, another)
STATED = {
    "gsm8k": ("72", "72", "71"),
    "math_reasoning": ("B", "B", "C"),
    "qa": ("Paris", "Paris", "Rome"),
    "classification": ('{"label": "yes", "labels": ["yes", "no"]}', "yes", "no"),
}
MARKERS = ["#### {}\n", "\\boxed{{{}}}", "<answer>{}</answer>", "Answer: {}\n", "So the answer is {}\n"]
AROUND = st.text(st.characters(exclude_characters="#\\<", exclude_categories=["Cs"]), max_size=30)


@settings(max_examples=200, deadline=None)
@given(
    source=st.sampled_from(list(STATED)), first=st.sampled_from(MARKERS), last=st.sampled_from(MARKERS), data=st.data()
)
def test_the_last_marker_decides_whatever_stands_around(source, first, last, data):
    truth, right, wrong = STATED[source]
    for stated, other, accuracy in ((right, wrong, 1.0), (wrong, right, 0.0)):
        before, between, behind = (data.draw(AROUND) for _ in range(3))
        response = f"{before}{first.format(other)}{between}{last.format(stated)}{behind}"
        assert dispatch.compute_score(source, response, truth)["accuracy"] == accuracy, response


@pytest.mark.parametrize("marker", MARKERS)
@pytest.mark.parametrize("source", list(STATED))
def test_several_answers_in_one_marker_are_none(source, marker):
    truth, right, wrong = STATED[source]
    for text in (f"{right} or {wrong}", f"{wrong} or {right}", f"{right}, {wrong}", f"{right} {wrong}"):
        first_of_a_line = source == "gsm8k" and marker.endswith("\n") and text.startswith(right)
        result = dispatch.compute_score(source, marker.format(text), truth)
        assert result["accuracy"] == float(first_of_a_line), text
        assert first_of_a_line or result["score"] <= 0.34
