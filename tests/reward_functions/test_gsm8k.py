"""GSM8K's reward: tables of decided cases and properties over random numbers in random spellings."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recipes.data.rewards import load_reward

gsm8k = load_reward("reward_functions/gsm8k.py")

WORK = "She has 9 rows of 8 trees, so 9 * 8 = 72 trees."


def score(response: str, gold: object = "72", **kwargs) -> dict:
    return gsm8k.compute_score("openai/gsm8k", response, gold, **kwargs)


# What is stated -> gold, all with full marks in every frame below.
READ = {
    "72": """72|072|72.|72.00|$72|€72|72€|$ 72|\\$72|US$72|72 USD|Rs. 72|**72**|`72`|"72"|“72”|(72)|[72]|+72
        |~72|≈ 72|=> 72|=72
        |７２|７２．|72 apples|72 Trees|72kg|72 KG|72 m²|72m²|72 m^2|72°C|72 degrees|72 km/h|72/day|$72 per day
        |72 a week|72nd
        |72-year-old|72 times|72¢|72pm|72 apples!|72 个苹果|72元|about 72|exactly 72|at least 72|I got 72
        |I think 72|72 in total
        |72 (that is 6 dozen)|72 - six dozen|72 — six dozen|72. That leaves 3 of them.|72, which is six dozen
        |72, no remainder
        |9 * 8 = 72|x = 72|72 = total|total: 72|144/2|144 / 2|72 were not sold|72 days, not hours|72 x = 72
        |$72 dollars""",
    "1234": """1,234|1 234|1'234|1’234|1\u2009234|1\u00a0234|1\u202f234|1_234|１，２３４|1{,}234|1\\,234|1\\ 234
        |\\$1\\,234|1 234 €|1.234,00
        |1 234,0|1'234.00|1,234.00|1.234k|1.234 Thousand""",
    "1234567": """1,234,567|12,34,567|1 234 567|1.234.567|1'234'567|1.234567 million|1.234567 Million|1.234567M
        |$1.234567m
        |1.234567 Millions|1.234567mn""",
    "300000": "3 hundred thousand|3 lakh|30万|300k|300K|0.3 million|300 thousand dollars",
    "5000000000": "5 billion|5B|$5bn|5 Billion|50亿|0.005T",
    "1.5": "1½|1 ½|1 1/2 hours|3/2|1\\frac{1}{2}|\\frac{3}{2}|\\frac32|1.50|１½",
    "-1.5": "-1½|-\\frac{3}{2}|minus 1.5",
    "0.75": "¾|3/4|.75|\\frac{3}{4}|75%",
    "-5": """-5|- 5|−5|－5|﹣5|–5|-$5|$-5|$ -5|(-5)|-(5)|**-5**|minus 5|Minus $5|negative 5|负5
        |x = - 5|-5 degrees|It is -5""",
    "50%": """50%|50 %|50％|50\\%|50 percent|50 Percent|50 PER CENT|50pct|**50**%|50 percentage points|50% of them
        |50|0.5|百分之50""",
    "50": "50%|50 Percent|50\\%",
    "0": "0|0.0|-0",
}  # fmt: skip
MARKED = ["#### {}", "\\boxed{{{}}}", "<answer>{}</answer>", "<think>5</think>\n#### {}"]
PROSE = ["The answer is {}", "So I worked it all out, over here.\nAnd so: {}"]


def cases(table: dict[str, str]) -> list[tuple[str, str]]:
    return [(text.strip("\n "), gold) for gold, texts in table.items() for text in re.split(r"\|\n? *", texts)]


@pytest.mark.parametrize(("text", "gold"), cases(READ))
def test_what_is_read(text, gold):
    for frame in MARKED:
        result = score(frame.format(text), gold)
        assert result["accuracy"] == 1.0, frame
        heading = "#" in frame and text[:1].isalpha()  # "#### Total 72" is no marker
        assert heading or (result["score"], result["format"]) == (1.0, 1.0), frame
    assert score(f"The answer is {text}", gold)["accuracy"] == 1.0 or "frac32" in text  # these digits end a name


# What is stated -> a gold that it must not be taken for, in any frame.
NOT_READ = {
    "72": """-72|- 72|−72|－72|minus 72|Minus 72|negative 72|负72|72²|72³|72!|72‰|72‱|√72|√ 72|∛72|\\sqrt{72}|72π
        |72\\pi|72^2|72^{2}|72₃
        |72 squared|72 Cubed|72 factorial|72 thousand|72 Thousand|72 Million|72 MILLIONS|72M|72k|72K|72B|$72m
        |72 lakh|72万|72百|72分之一
        |72½|72 ½|72 1/2|72 and a half|72 point five|72 hundredths|72 thousandths|72 fifths|72 per mille
        |72 degrees below zero|72e1
        |72,000|72/7|1/72|72x|72 x|72n|72i|0x72|72*x|x*72|x-72|x + 72|72 - x|72+1|72(2)|72 × 2|72-|±72|72±1|%72
        |10% of 72|half of 72
        |twice 72|square root of 72|log(72)|72?|72;73|72,73|72, 73|72:73|72/73|72-73|72 & 73|72 and 73|72 or 73
        |70 or 72|72 or so
        |7 2|72,5|72.5|72.72.72|72'5|3.\\overline{72}|72\\overline{3}|72̅|72٢|not 72|Not 72|isn't 72|isn’t 72
        |is not 72|never 72
        |cannot be 72|can't be 72|not equal to 72|definitely not 72|it is not the case that it is 72
        |72 is not the answer|72 is wrong
        |不是72|far from 72|anything but 72|other than 72|instead of 72|maybe 72|perhaps 72|possibly 72|either 72
        |可能72|I am not sure, 72
        |I don't know, 72|more than 72|less than 72|over 72|nearly 72|between 70 and 72|> 72|x>72|x > 72|≥72|≠72|!=72
        |x != 72|x >= 72|x \\neq 72
        |72. No wait, 73|72. No, 73.|72, no, 73|72 (or 73)|72 (maybe 73)|72, wait|72 — actually 73""",
    "1": "1 234|1'234|1_234|1\u202f234|1½|the answer is not 1|1;2|1/2|1 or 2|1!|1²|100%",
    "234": "1 234|1'234|1_234|1\u202f234",
    "3": "3M|3 Million|3\\overline{3}|3.\\overline{3}|3½|3,5",
    "50": "0.5|.5|50‰|5%|0.5%",
    "1234": "1.234",
}  # fmt: skip


@pytest.mark.parametrize(("text", "gold"), cases(NOT_READ))
def test_what_is_never_taken_for_the_plain_number(text, gold):
    for frame in ["{}", *MARKED, *PROSE]:
        result = score(frame.format(text), gold)
        assert result["accuracy"] == 0.0, frame
        assert result["score"] == (0.1 if result["reason"] == "wrong" and result["format"] else 0.0)


WHERE = [
    ("72", "72"), ("#### 1 1/2 hours", "3/2"), ("#### Answer: 72", "72"), ("#### The answer is 72 trees.", "72"),
    ("#### Final Answer\n\n72", "72"), ("####\n72", "72"), ("####72", "72"),
    ("#### 72\nThat leaves 3 of them.", "72"), ("#### 72\n\n#### Check\n9 * 8 is right", "72"),
    ("\\boxed{72} #### Check", "72"), ("\\boxed {72}", "72"), ("$\\boxed{72\\text{ trees}}$.", "72"),
    ("\\boxed{\\textbf{72}}", "72"), ("<answer>\n72 trees\n</answer> I used 2 steps.", "72"),
    ("<answer>\\boxed{72}</answer>", "72"), ("<answer>#### 72</answer>", "72"), ("70 or 71 </think> #### 72", "72"),
    ("#### 70\nNo, wait.\n#### 72", "72"), ("#### 70, no: \\boxed{72}", "72"),
    ("\\boxed{70} no: <answer>72</answer>", "72"), ("<answer>70</answer> no\n#### 72", "72"),
    ("9*8=<<9*8=72>>72\n#### 72", "72"), ("#### <<9*8=72>>72", "72"), ("#### 72<|im_end|>", "72"),
    ("#### 72", "9*8=<<9*8=72>>72 trees\n#### 72"), ("#### 109200000", "109,200,000"), ("#### 72", 72),
]  # fmt: skip


@pytest.mark.parametrize(("response", "gold"), WHERE)
def test_where_the_answer_stands(response, gold):
    result = score(response, gold)
    assert (result["score"], result["reason"], result["format"]) == (1.0, "correct", 1.0)
    assert score(f"{WORK}\n\n{response}", gold)["reason"] == "correct"


UNMARKED = {
    WORK: "72", "So she has 72.": "72", "The answer is 72. She needs 3 more.": "72",
    "The answer is not 70, it is 72.": "72",
    "**Answer**: 72 trees in 9 rows": "9",  # the asterisks hide the colon, so this is the last number
    "From 7 to 3/4": "0.75", "Answer: 72 trees": "72", "From -3 to\n- she owes\n12 - $5 = -$7": "-7",
    "She ends with 12-5": "5",  # a subtraction, not minus five
    "She did not sell 72 of them": "72", "She pays 1,234 dollars for A4 paper": "1234",
    "I computed\n#### Step 2\nand so 72": "72", "so it is ７２。": "72",
}  # fmt: skip


@pytest.mark.parametrize("response", UNMARKED)
def test_without_a_marker_the_last_number_counts_for_less(response):
    result = score(response, UNMARKED[response])
    assert (result["score"], result["reason"], result["format"]) == (0.9, "correct", 0.0)
    assert score(response, "123456789")["score"] == 0.0


REASON = {
    "#### 71": "wrong", "#### 72 - 2 = 70": "wrong", "#### 72 thousand": "wrong", "#### 72²": "ambiguous",
    "#### 72 or 73": "ambiguous", "#### 12:30": "ambiguous",
    "#### 72\nNo wait, that is wrong. It is 73.": "ambiguous", "<answer>72</answer> Actually, 73.": "ambiguous",
    "\\boxed{72} Hold on, I forgot one.": "ambiguous", "#### 7.2e1": "unparsable", "#### 72/0": "unparsable",
    "#### " + "7" * 31: "unparsable", "\\boxed{seventy-two}": "unparsable", "\\boxed{}": "unparsable",
    "\\boxed 72}": "unparsable", "<answer></answer>": "unparsable", "<answer>x</answer> 72": "unparsable",
    "": "no_answer", "seventy-two": "no_answer", "#### seventy-two": "no_answer", "See B72": "no_answer",
    "٧٢": "no_answer",  # digits of other scripts are not read
    "<think>#### 72</think>": "answer_in_think", "<think>\\boxed{72}</think> That is it.": "answer_in_think",
    "<think>#### 72": "truncated", "#### 70 <think>#### 72": "truncated", "<think>a</think><answer>72": "truncated",
    "so \\boxed{72": "truncated", "so \\boxed": "truncated", "so 72\n####": "truncated",
}  # fmt: skip


@pytest.mark.parametrize("response", REASON)
def test_what_is_no_right_answer_has_its_reason(response):
    result = score(response)
    assert (result["reason"], result["format"]) == (REASON[response], float(REASON[response] == "wrong"))


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


def test_broken_gold_has_its_reason():
    for gold in ("", "seventy", "7 2", "72 trees", "72 or 73", "1/0", "7,2", "#### ", "٧", "7" * 31, 7.0):
        assert (score("#### 72", gold)["score"], score("#### 72", gold)["reason"]) == (0.0, "gold_unparsable"), gold


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


_PIECES = ["so", "she", "has", "12", "3.5", "-7", "$9", "1,234", "1/2", "7%", "m^2", "B4", ".", ",", "(", "\n", "="]
TALK = st.lists(st.sampled_from(_PIECES), min_size=1, max_size=12).map(" ".join)


@settings(max_examples=200, deadline=None)
@given(text=TALK, count=st.integers(1, 80))
def test_the_last_number_does_not_depend_on_what_stands_far_before_it(text, count):
    """The quick search at the end of a long text and the full scan of a short one find the same."""
    short, long = score(f"word word {text}"), score("word " * count + text)
    assert (short["reason"], short["pred"]) == (long["reason"], long["pred"])


WORDS = st.sampled_from(
    ["", "she has", "=", "not", "is", "half of", "maybe", "negative", "than", "costs", "the answer is"]
)
UNITS = [
    "", ".", " eggs", " eggs.", " per", " hundred", " percent", " and a half", " squared", " or so", " tenths", " k",
]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(number=st.integers(0, 10**6), before=WORDS, unit=st.sampled_from(UNITS))
def test_the_quick_reading_equals_the_full_one(number, before, unit):
    """Plain words around plain digits take a short way; another character takes the long one."""
    for digits in (str(number), f"{number:,}"):
        assert gsm8k.read_statement(f"{digits}{unit}") == gsm8k.read_statement(f"~{digits}{unit}")
        work = "She counts them all again, one by one, until she is quite happy with what it comes to."
        quick, full = (score(f"{work}\nSo {before} {sign}{digits}{unit}") for sign in ("", "$"))
        assert (quick["reason"], quick["pred"]) == (full["reason"], full["pred"])
