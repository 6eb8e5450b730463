"""GSM8K's reward: tables of decided cases and properties over random numbers in random spellings."""

from __future__ import annotations

import importlib.util
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recipes.paths import ROOT

_spec = importlib.util.spec_from_file_location("loaded_gsm8k", ROOT / "reward_functions" / "gsm8k.py")
gsm8k = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(gsm8k)

WORK = "She has 9 rows of 8 trees, so 9 * 8 = 72 trees."


def score(response: str, gold: object = "72", **kwargs) -> dict:
    return gsm8k.compute_score("openai/gsm8k", response, gold, **kwargs)


# (response, gold), all with full marks
STATED = [
    ("#### 72", "72"),
    ("####72", "72"),
    ("####  72  \n", "72"),
    ("72", "72"),
    ("72.", "72"),
    ("72.00", "72"),
    ("$72", "72"),
    ("72 apples", "72"),
    ("**72**", "72"),
    ("1,234", "1234"),
    ("#### 1,234", "1234"),
    ("#### 1,234.50", "1234.5"),
    ("#### 1234", "1,234"),
    ("#### 109200000", "109,200,000"),
    ("#### 072", "72"),
    ("#### 0", "0"),
    ("#### 0.50", ".5"),
    ("#### .5", "1/2"),
    ("#### 1/2", "0.5"),
    ("#### 1 1/2 hours", "1.5"),
    ("#### 3 / 4", "0.75"),
    (r"\boxed{\frac{3}{4}}", "0.75"),
    (r"\boxed{1\frac{1}{2}}", "3/2"),
    ("#### $72", "72"),
    ("#### $ 72", "72"),
    (r"#### \$72", "72"),
    ("#### €72", "72"),
    ("#### 72.", "72"),
    ("#### 72.00", "72"),
    ("#### 72 apples", "72"),
    ("#### 72kg", "72"),
    ("#### 72 m^2", "72"),
    ("#### 72 km/h", "72"),
    ("#### $72 per day", "72"),
    ("#### 72 (that is 6 dozen)", "72"),
    ("#### 72. That leaves 3 of them.", "72"),
    ("#### 72\nThat leaves 3 of them.", "72"),
    ("#### **72**", "72"),
    ("#### Answer: 72", "72"),
    ("#### The answer is 72 trees.", "72"),
    ("#### Final Answer\n\n72", "72"),
    ("####\n72", "72"),
    ("#### 72\n\n#### Check\n9 * 8 is right", "72"),
    (r"\boxed{72} " + "#### Check", "72"),
    ("#### 9 * 8 = 72", "72"),
    ("#### x = 72", "72"),
    ("#### 72 = total", "72"),
    ("#### -5", "-5"),
    ("#### - 5", "-5"),
    ("#### −5", "-5"),
    ("#### -$5", "-5"),
    ("#### $-5", "-5"),
    ("#### 72%", "72%"),
    ("#### 72 percent", "72%"),
    ("#### 72", "72%"),
    (r"\boxed{72\%}", "72%"),
    ("#### 5 million", "5,000,000"),
    ("#### 2.5 thousand dollars", "2500"),
    ("#### 72k", "72000"),
    (r"\boxed{72}", "72"),
    (r"\boxed {72}", "72"),
    (r"$\boxed{72\text{ trees}}$.", "72"),
    (r"\boxed{1{,}234}", "1234"),
    (r"\boxed{\$1\,234}", "1234"),
    ("<answer>72</answer>", "72"),
    ("<answer>\n72 trees\n</answer> I used 2 steps.", "72"),
    (r"<answer>\boxed{72}</answer>", "72"),
    ("<answer>#### 72</answer>", "72"),
    ("<think>is it 70? #### 70</think>\n#### 72", "72"),
    ("70 or 71 </think> #### 72", "72"),
    ("#### 70\nNo, wait.\n#### 72", "72"),
    (r"#### 70, no: \boxed{72}", "72"),
    (r"\boxed{70} no: <answer>72</answer>", "72"),
    ("<answer>70</answer> no\n#### 72", "72"),
    ("9*8=<<9*8=72>>72\n#### 72", "72"),
    ("#### 72<|im_end|>", "72"),
    ("#### 72", "9*8=<<9*8=72>>72 trees\n#### 72"),
    ("#### 72", 72),
]


@pytest.mark.parametrize(("response", "gold"), STATED)
def test_stated_answers_have_full_marks(response, gold):
    result = score(response, gold)
    assert (result["score"], result["reason"], result["format"]) == (1.0, "correct", 1.0)
    with_work = score(f"{WORK}\n\n{response}", gold)
    assert with_work["reason"] == "correct"
    assert with_work["pred"] == result["pred"]


UNMARKED = {
    WORK: "72",
    "So she has 72.": "72",
    "The answer is 72. She needs 3 more.": "72",
    "**Answer**: 72 trees in 9 rows": "9",  # the asterisks hide the colon, so this is the last number
    "From 7 to 3/4": "0.75",
    "From 7 to 3 / 4": "0.75",
    "Answer: 72 trees": "72",
    "From -3 to\n- she owes\n12 - $5 = -$7": "-7",
    "She ends with 12-5": "5",  # a subtraction, not minus five
    "It is -5 degrees": "-5",
    "He eats 1 1/2 pies": "1.5",
    "She pays 1,234 dollars for A4 paper": "1234",
    "I computed\n#### Step 2\nand so 72": "72",
}


@pytest.mark.parametrize("response", UNMARKED)
def test_without_a_marker_the_last_number_counts_for_less(response):
    result = score(response, UNMARKED[response])
    assert (result["score"], result["reason"], result["format"]) == (0.9, "correct", 0.0)
    assert score(response, "123456789")["score"] == 0.0


WRONG = {
    "#### 71": "wrong",
    "#### -72": "wrong",
    "#### - 72": "wrong",
    "#### 7.2": "wrong",
    "#### 72.01": "wrong",
    "#### 72,000": "wrong",
    "#### 72/7": "wrong",
    "#### 72 1/2": "wrong",
    "#### 72 thousand": "wrong",
    "#### 144/2.5": "wrong",
    "#### 72 - 2 = 70": "wrong",
    "#### 72%": "percent",
    "#### 72 %": "percent",
    r"\boxed{72\%}": "percent",
    "#### 72 percent": "percent",
    "so it is 72%": "percent",
    "#### 72 or 73": "ambiguous",
    "#### 70-72": "ambiguous",
    "#### 70 + 2": "ambiguous",
    "#### 80-8": "ambiguous",
    "#### 7, 2": "ambiguous",
    "#### 7 2": "ambiguous",
    "#### 7,2": "ambiguous",
    "#### 12:30": "ambiguous",
    "<answer>72 73</answer>": "ambiguous",
    r"\boxed{72, 73}": "ambiguous",
    "#### 7.2e1": "unparsable",
    "#### 72/0": "unparsable",
    "#### " + "7" * 31: "unparsable",
    r"\boxed{seventy-two}": "unparsable",
    r"\boxed{}": "unparsable",
    r"\boxed 72}": "unparsable",
    "<answer></answer>": "unparsable",
    "<answer>x</answer> 72": "unparsable",
    "": "no_answer",
    "seventy-two": "no_answer",
    "#### seventy-two": "no_answer",
    "See B72": "no_answer",
    "٧٢": "no_answer",
    "<think>#### 72</think>": "answer_in_think",
    "<think>\\boxed{72}</think> That is it.": "answer_in_think",
    "<think>#### 72": "truncated",
    "#### 70 <think>#### 72": "truncated",
    "<think>a</think><answer>72": "truncated",
    "so \\boxed{72": "truncated",
    "so \\boxed": "truncated",
    "so 72\n####": "truncated",
    "so 72\n#### ": "truncated",
}


@pytest.mark.parametrize("response", WRONG)
def test_wrong_answers_have_their_reason(response):
    result = score(response)
    assert result["reason"] == WRONG[response]
    assert result["score"] == (0.1 if result["format"] else 0.0)
    assert result["format"] == float(WRONG[response] in ("wrong", "percent") and "so it is" not in response)


def test_every_reason_is_in_a_table():
    assert {*WRONG.values(), "correct", "gold_unparsable"} == set(gsm8k.REASONS)


BROKEN = ["", "seventy", "7 2", "72 trees", "72 or 73", "1/0", "7,2", "#### ", "٧", "7" * 31, 7.0]


@pytest.mark.parametrize("gold", BROKEN)
def test_broken_gold_is_told_apart(gold):
    result = score("#### 72", gold)
    assert (result["score"], result["reason"]) == (0.0, "gold_unparsable")


def test_the_prediction_has_one_spelling():
    """verl's majority vote compares predictions as strings."""
    responses = ["#### 1234.5", "#### 1,234.50", r"\boxed{\frac{2469}{2}}", "it is $1,234.50", "#### 2469/2"]
    assert {score(response)["pred"] for response in responses} == {"2469/2"}
    assert {score(r)["pred"] for r in ("#### 072", "#### 72", "#### 72.0", "72 trees", "so 72")} == {"72"}
    assert {score(r, "72")["pred"] for r in ("#### 72", "<answer>72</answer>")} == {"72"}
    assert score("no number")["pred"] == ""


def test_format_credit_can_be_changed():
    responses = ("#### 72", "so 72", "#### 71", "so 71")
    assert [score(response, format_credit=0.0)["score"] for response in responses] == [1.0, 1.0, 0.0, 0.0]
    assert [score(response, format_credit=0.3)["score"] for response in responses] == [1.0, 0.7, 0.3, 0.0]


# Solutions in the data set's own form, with its calculator notes.
ORIGINALS = {
    "9": "Ann sells 16 - 3 - 4 = <<16-3-4=9>>9 eggs.\n#### 9",
    "1,080": "A ream holds 500.\nThree rolls hold 3*360=<<3*360=1080>>1,080 sheets.\n#### 1,080",
    "0": "They ate 8-8=<<8-8=0>>0 less.\n#### 0",
    "-3": "It fell by 5-2=<<5-2=3>>3 degrees, from 0 to -3.\n#### -3",
    "2.5": "That is 5/2=<<5/2=2.5>>2.5 hours.\n#### 2.5",
}


@pytest.mark.parametrize("gold", ORIGINALS)
def test_original_solutions_have_full_marks(gold):
    for truth in (gold, gold.replace(",", ""), ORIGINALS[gold]):
        for response in (f"#### {gold}", ORIGINALS[gold], gold):
            assert score(response, truth)["score"] == 1.0


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


def spellings(number: Fraction) -> list[str]:
    text = plain(number)
    found = [text, f"${text}", f"**{text}**", f"{text} trees", text.replace("-", "−")]
    if number.denominator == 1:
        found += [f"{number.numerator:,}", f"{text}.", f"{text}.00", f"{2 * number.numerator}/2"]
    if number.denominator != 1 and number > 0:
        found.append(f"\\frac{{{number.numerator}}}{{{number.denominator}}}")
    return found


FRAMES = ["#### {}", "####{}", "\\boxed{{{}}}", "<answer>{}</answer>", "<think>5</think>\n#### {}", "#### Answer: {}"]


@settings(max_examples=300, deadline=None)
@given(number=NUMBERS, other=NUMBERS, frame=st.sampled_from(FRAMES), data=st.data())
def test_any_spelling_equals_any_other(number, other, frame, data):
    response = f"{WORK}\n{frame.format(data.draw(st.sampled_from(spellings(number))))}"
    gold = data.draw(st.sampled_from([plain(number), str(number)]))
    assert score(response, gold)["score"] == 1.0
    assume(number != other)
    assert score(response, plain(other))["reason"] == "wrong"
    assert Fraction(score(response, plain(other))["pred"]) == number


_PIECES = ["so", "she", "has", "12", "3.5", "-7", "$9", "1,234", "1/2", "7%", "m^2", "B4", ".", ",", "(", "\n", "="]
PROSE = st.lists(st.sampled_from(_PIECES), min_size=1, max_size=12).map(" ".join)


@settings(max_examples=300, deadline=None)
@given(text=PROSE, count=st.integers(1, 80))
def test_the_last_number_does_not_depend_on_what_stands_far_before_it(text, count):
    """The quick search at the end of a long text and the full scan of a short one find the same."""
    short, long = score(f"word word {text}"), score("word " * count + text)
    assert (short["reason"], short["pred"]) == (long["reason"], long["pred"])


@settings(max_examples=200, deadline=None)
@given(number=st.integers(0, 10**6), unit=st.sampled_from(["", ".", " eggs", " eggs.", " per", " hundred", " percent"]))
def test_the_quick_reading_equals_the_full_one(number, unit):
    for digits in (str(number), f"{number:,}"):
        quick = gsm8k.read_statement(f"{digits}{unit}")
        assert quick == gsm8k.read_statement(f"~{digits}{unit}")  # the tilde takes the long way
