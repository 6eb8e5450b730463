"""GSM8K's reward: random numbers in random spellings, and verl's grader; decisions.txt and verdicts.txt have more."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recipes.data.rewards import load_reward

gsm8k = load_reward("reward_functions/gsm8k.py")
verl = load_reward("tests/reward_functions/public_graders.py").verl_gsm8k()

WORK = "She has 9 rows of 8 trees, so 9 * 8 = 72 trees."


def score(response: str, gold: object = "72", **kwargs) -> dict:
    return gsm8k.compute_score("openai/gsm8k", response, gold, **kwargs)


COUNTS, SHARES = (
    "How many trees does she have?",
    ("What percentage of the trees?", "How likely is that?", "What % is it?"),
)


def test_a_percent_sign_is_right_where_the_question_asks_for_a_share():
    """GSM8K's gold for such a question is 50, without a sign. EasyR1 hands rewards no question."""
    for response in ("#### 50%", "#### 50 Percent", "\\boxed{50\\%}", "so it is 50%"):
        for extra in (None, {}, {"question": None}, *({"question": text} for text in SHARES)):
            assert score(response, "50", extra_info=extra)["reason"] == "correct"
        known = score(response, "50", extra_info={"question": COUNTS})
        assert (known["reason"], known["accuracy"], known["pred"]) == ("percent", 0.0, "50%")
        assert score(response, "50%", extra_info={"question": COUNTS})["reason"] == "correct"
    assert {score(text, "50")["pred"] for text in ("#### 50%", "#### 50", "50 percent")} == {"50"}, "one majority vote"


LONG = "That is the whole reasoning, and nothing is left to add to it. " * 6
# The end of a response to a problem whose answer is 4711, and who accepts it: ours, verl's grader in its strict mode
# (the last `#### ` with digits, points and commas in the last 300 characters), and in its flexible one (the last
# number).
AGAINST_VERL = [
    ("#### 4711", 1, 1, 1), ("#### 4711 apples", 1, 1, 1), ("#### 4713", 0, 0, 0), ("I know of 4713 things", 0, 0, 0),
    ("#### 4711\nNo, wait.\n#### 4713", 0, 0, 0), ("#### 4713-4711", 0, 0, 0),
    ("<think>#### 4711</think>\n#### 4713", 0, 0, 0),
    # A reader says: right. One of verl's modes says: wrong.
    ("####4711", 1, 0, 1), ("####  4711", 1, 0, 1), ("#### **4711**", 1, 0, 1), ("#### $4711", 1, 0, 1),
    ("#### 4711.", 1, 0, 0), ("#### 4711.00", 1, 0, 0), ("#### 4,711", 1, 1, 0), ("#### 4711 m^2", 1, 1, 0),
    ("#### 4711\nThat leaves 4713 of them.", 1, 1, 0), ("#### 4711\n\n#### Check\nAdd 4713 and 5.", 1, 1, 0),
    (f"#### 4711\n{LONG}", 1, 0, 0), (r"So it is $\boxed{4711}$.", 1, 0, 1),
    (r"\boxed{4711} since 4713 are left", 1, 0, 0),
    ("<answer>4711</answer>", 1, 0, 1), ("So she has 4711 apples", 1, 0, 1), ("The answer is 4711.", 1, 0, 0),
    ("The answer is 4711 apples. She gives 4713 away", 1, 0, 0), ("so 1 * 4711 = 4711", 1, 0, 1),
    ("#### 9422/2", 1, 0, 0),
    # A reader says: not that number, or no answer. One of verl's modes says: right.
    ("<think>is it\n#### 4711", 0, 1, 1), ("#### 4711 or 4713", 0, 1, 0), ("#### 4713 or 4711", 0, 0, 1),
    ("#### 4711 + 1", 0, 1, 0), ("#### 4711 + 1 = 4713", 0, 1, 0), ("#### 4711 thousand", 0, 1, 1),
    ("#### 4711e3", 0, 1, 0), ("#### 4711/7", 0, 1, 0), ("#### 4711 1/2", 0, 1, 0), ("#### 4711‰", 0, 1, 1),
    ("#### 4711\nNo wait, that is wrong.", 0, 1, 0), (r"#### 4711, no: \boxed{4713}", 0, 1, 0),
    ("#### 4713\nIt is not 4711", 0, 0, 1), (r"\boxed{4713} and not 4711", 0, 0, 1),
    ("4713 people sit in room B4711", 0, 0, 1), ("#### 4713\nThat took me\n#### Step 4711", 0, 0, 1),
]  # fmt: skip


@pytest.mark.parametrize(("end", "ours", "strict", "flexible"), AGAINST_VERL)
def test_against_verl(end, ours, strict, flexible):
    response = end if end.startswith("<think>") else f"3 * 12 = 36\n{end}"
    assert score(response, "4711")["accuracy"] == ours
    assert verl.compute_score(response, "4711") == strict
    assert verl.compute_score(response, "4711", method="flexible") == flexible


NUMBERS = st.one_of(
    st.integers(-(10**9), 10**9).map(Fraction),
    st.decimals(-99999, 99999, places=2).map(Fraction),
    st.builds(Fraction, st.integers(-500, 500), st.integers(1, 60)),
)


def plain(number: Fraction) -> str:
    """`-3/4`, or a decimal where that is exact."""
    hundredths = number * 100
    if hundredths.denominator != 1:
        return str(number)
    sign, whole, part = "-" if number < 0 else "", *divmod(abs(hundredths.numerator), 100)
    return f"{sign}{whole}" + (f".{part:02d}" if part else "")


SEPARATORS = [",", " ", "'", "’", "_", "\u00a0", "\u2009", "\u202f", "{,}", "\\,"]


def spellings(number: Fraction) -> list[str]:
    text = plain(number)
    found = [text, f"${text}", f"**{text}**", f"{text} trees", text.replace("-", "−"), text.replace("-", "minus ")]
    found.append(text.translate({ord(each): ord(each) + 0xFEE0 for each in "0123456789-.,/"}))  # full width
    if number.denominator == 1:
        found += [f"{number.numerator:,}".replace(",", separator) for separator in SEPARATORS]
        found += [f"{text}.", f"{text}.00", f"{2 * number.numerator}/2", f"{number.numerator:,}.0"]
    if number.denominator != 1 and number > 0:
        found.append(f"\\frac{{{number.numerator}}}{{{number.denominator}}}")
    return found


FRAMES = ["#### {}", "####{}", "\\boxed{{{}}}", "<answer>{}</answer>", "<think>5</think>\n#### {}", "#### Answer: {}"]


@settings(max_examples=200, deadline=None)
@given(number=NUMBERS, other=NUMBERS, frame=st.sampled_from(FRAMES), data=st.data())
def test_any_spelling_equals_any_other(number, other, frame, data):
    response = f"{WORK}\n{frame.format(data.draw(st.sampled_from(spellings(number))))}"
    gold = data.draw(st.sampled_from([plain(number), str(number)]))
    assert score(response, gold)["score"] == 1.0
    assume(number != other)
    assert score(response, plain(other))["reason"] == "wrong"
    assert score(response, plain(other))["pred"] == str(number), "one spelling for verl's majority vote"
