"""GSM8K's answers and short answers in words beside verl's graders; verdicts.txt has more."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.rewards.loading import load_reward

gsm8k = load_reward("reward_functions/gsm8k.py")
qa = load_reward("reward_functions/dispatch.py").judges.qa


def verl_grader(name: str) -> ModuleType:
    """A file of verl's graders by itself: importing `verl` takes seconds."""
    package = importlib.util.find_spec("verl")
    path = Path(package.submodule_search_locations[0]) / "utils" / "reward_score" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"verl_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GSM8K, QA = verl_grader("gsm8k"), verl_grader("search_r1_like_qa_em")


def score(response: str, gold: object = "72", **kwargs) -> dict:
    return gsm8k.compute_score("openai/gsm8k", response, gold, **kwargs)


LONG = "That is the whole reasoning, and nothing is left to add to it. " * 6
# The end of a response to a problem whose answer is 4711, and who accepts it: ours, ours with the flexible switch, and
# verl's grader in its strict mode (the last `#### ` with digits, points and commas in the last 300 characters) and in
# its flexible one (the last number).
AGAINST_VERL = [
    ("#### 4711", 1, 1, 1, 1), ("#### 4711 apples", 1, 1, 1, 1), ("#### 4713", 0, 0, 0, 0),
    ("#### 4711\nNo, wait.\n#### 4713", 0, 0, 0, 0), ("<think>#### 4711</think>\n#### 4713", 0, 0, 0, 0),
    ("####4711", 1, 1, 0, 1), ("#### **4711**", 1, 1, 0, 1), ("#### $4711", 1, 1, 0, 1), ("#### 4711.", 1, 1, 0, 0),
    ("#### 4711.00", 1, 1, 0, 0), ("#### 4,711", 1, 1, 1, 0), ("#### 4711 m^2", 1, 1, 1, 0),
    ("#### 4711\nThat leaves 4713 of them.", 1, 1, 1, 0), (f"#### 4711\n{LONG}", 1, 1, 0, 0),
    (r"So it is $\boxed{4711}$.", 1, 1, 0, 1), (r"\boxed{4711} since 4713 are left", 1, 1, 0, 0),
    ("<answer>4711</answer>", 1, 1, 0, 1), ("#### 4711 or 4713", 1, 1, 1, 0), ("#### 4711 thousand", 1, 1, 1, 1),
    (r"#### 4711, no: \boxed{4713}", 0, 0, 1, 0), ("#### 4713\nIt is not 4711", 0, 0, 0, 1),
    ("So she has 4711 apples", 0, 1, 0, 1), ("The answer is 4711.", 1, 1, 0, 0), ("so 1 * 4711 = 4711", 0, 1, 0, 1),
    ("4713 people sit in room B4711", 0, 0, 0, 1), ("<think>is it\n#### 4711", 0, 0, 1, 1),
    ("#### Step one\nso it is 4711", 0, 1, 0, 1),
]  # fmt: skip


@pytest.mark.parametrize(("end", "ours", "ours_flexible", "strict", "flexible"), AGAINST_VERL)
def test_numbers_against_verl(end, ours, ours_flexible, strict, flexible):
    response = end if end.startswith("<think>") else f"3 * 12 = 36\n{end}"
    assert score(response, "4711")["accuracy"] == ours
    assert score(response, "4711", flexible=True)["accuracy"] == ours_flexible
    assert GSM8K.compute_score(response, "4711") == strict
    assert GSM8K.compute_score(response, "4711", method="flexible") == flexible


def test_the_flexible_switch_is_no_form():
    result = score("So she has 72.", flexible=True)
    assert (result["score"], result["format"], result["pred"]) == (0.9, 0.0, "72")
    assert score("nothing", flexible=True)["reason"] == "no_answer"


PIECES = [
    "The", "a", "an", "cat", "CAT", "sat,", "U.S.", "--", "don't", "1,000", "é", "ü.", "'a'", "  ", "12", "$", "^_`",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=8).map(" ".join) | st.text(
    st.characters(max_codepoint=0x7F, exclude_characters="-~\\{}^_$"),
    max_size=12,  # LaTeX is read, in answer and truth
)


@settings(max_examples=200, deadline=None)
@given(prediction=TEXTS, gold=TEXTS)
def test_as_squad_v1_1_wherever_there_are_english_words(prediction, gold):
    assert qa.normalised(prediction) == QA.normalize_answer(prediction)
    if qa.normalised(prediction) and qa.normalised(gold):
        assert qa.judge(prediction, (gold,))[0] is bool(QA.em_check(prediction, gold))
