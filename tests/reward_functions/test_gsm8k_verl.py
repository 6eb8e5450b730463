"""Where verl's own GSM8K grader decides otherwise, in both its modes, each class with a reader's verdict.

verl's rule (`verl.utils.reward_score.gsm8k`) looks at the last 300 characters. Strict: the last `#### ` followed by
digits, points and commas, commas removed, compared as a string. Flexible: the last run of digits, points and commas.
"""

from __future__ import annotations

import random

import pytest

from recipes.data.rewards import load_reward

gsm8k = load_reward("reward_functions/gsm8k.py")
verl = load_reward("tests/reward_functions/public_graders.py").verl_gsm8k()

LONG = "That is the whole reasoning, and nothing is left to add to it. " * 6

# name -> end of the response ({g} is the gold number, {w} another one), then who accepts it: ours, strict, flexible.
# The comment is the verdict of a person who reads the response.
AGREEMENTS = {
    "marked": ("#### {g}", 1, 1, 1),  # states the gold number
    "marked with unit": ("#### {g} apples", 1, 1, 1),
    "wrong": ("#### {w}", 0, 0, 0),
    "revised to wrong": ("#### {g}\nNo, wait.\n#### {w}", 0, 0, 0),  # the last word is wrong
    "no number behind": ("That is all I know of {w} things", 0, 0, 0),
    "range": ("#### {w}-{g}", 0, 0, 0),  # two numbers; flexible reads a minus sign
    "thought one, said another": ("<think>#### {g}</think>\n#### {w}", 0, 0, 0),
}
# A reader says: right. One of verl's modes says: wrong.
RIGHT = {
    "glued": ("####{g}", 1, 0, 1),  # a missing blank changes nothing; the prompt does not forbid it
    "two blanks": ("####  {g}", 1, 0, 1),
    "bold": ("#### **{g}**", 1, 0, 1),  # Markdown around the right number
    "dollar": ("#### ${g}", 1, 0, 1),  # the unit in front of the right number
    "full stop": ("#### {g}.", 1, 0, 0),  # both modes take the full stop for a part of the number
    "decimals": ("#### {g}.00", 1, 0, 0),  # the same number
    "thousands": ("#### {g:,}", 1, 1, 0),  # flexible keeps the comma
    "unit with a digit": ("#### {g} m^2", 1, 1, 0),  # flexible takes the exponent
    "remark behind": ("#### {g}\nThat leaves {w} of them.", 1, 1, 0),  # the answer was stated before
    "heading behind": ("#### {g}\n\n#### Check\nAdd {w} and 5.", 1, 1, 0),  # a Markdown heading states nothing
    "much text behind": ("#### {g}\n" + LONG, 1, 0, 0),  # beyond verl's 300 characters
    "boxed": (r"So it is $\boxed{{{g}}}$.", 1, 0, 1),  # stated in another usual way
    "boxed, remark behind": (r"\boxed{{{g}}} since {w} are left", 1, 0, 0),
    "answer tags": ("<answer>{g}</answer>", 1, 0, 1),
    "prose": ("So she has {g} apples", 1, 0, 1),  # right, though unmarked: ours gives 0.9
    "prose, full stop": ("The answer is {g}.", 1, 0, 0),  # right; flexible compares "72." with "72"
    "prose, remark": ("The answer is {g} apples. She gives {w} away", 1, 0, 0),  # stated, then something else
    "equation": ("so 1 * {g} = {g}", 1, 0, 1),
    "fraction": ("#### {twice}/2", 1, 0, 0),  # the same number
    "true minus": ("#### −{g}", 1, 0, 0),  # with the gold number negative; U+2212 is the minus sign
    "minus before the dollar": ("#### -${g}", 1, 0, 0),
}  # fmt: skip
# A reader says: not that number, or no answer. One of verl's modes says: right.
NOT_RIGHT = {
    "still thinking": ("<think>is it\n#### {g}", 0, 1, 1),  # cut off before it answered
    "hedged": ("#### {g} or {w}", 0, 1, 0),  # two numbers are no answer
    "hedged, gold last": ("#### {w} or {g}", 0, 0, 1),
    "sum": ("#### {g} + 1", 0, 1, 0),  # states one more than the gold number
    "equation to something else": ("#### {g} + 1 = {w}", 0, 1, 0),  # states its right-hand side
    "scale": ("#### {g} thousand", 0, 1, 1),  # states a thousand times the gold number
    "exponent": ("#### {g}e3", 0, 1, 0),  # as above
    "numerator": ("#### {g}/7", 0, 1, 0),  # states a seventh
    "mixed number": ("#### {g} 1/2", 0, 1, 0),  # states a half more
    "per mille": ("#### {g}‰", 0, 1, 1),  # a thousandth of it
    "retracted": ("#### {g}\nNo wait, that is wrong.", 0, 1, 0),  # taken back, and nothing in its place
    "revised in a box": (r"#### {g}, no: \boxed{{{w}}}", 0, 1, 0),  # the last word is wrong
    "marked wrong, gold in a remark": ("#### {w}\nIt is not {g}", 0, 0, 1),  # a marker beats a later number
    "boxed wrong, gold in a remark": (r"\boxed{{{w}}} and not {g}", 0, 0, 1),
    "digits in a word": ("{w} people sit in room B{g}", 0, 0, 1),  # a name, not a number
    "a step's number": ("#### {w}\nThat took me\n#### Step {g}", 0, 0, 1),  # a heading states nothing
}  # fmt: skip
CLASSES = AGREEMENTS | RIGHT | NOT_RIGHT
NEGATIVE = {"true minus", "minus before the dollar"}


def solution(name: str, rng: random.Random) -> tuple[str, str]:
    """A generated solution of this class and its gold number; the working never holds the gold number."""
    gold = rng.randint(1000, 9999)
    wrong = gold + rng.choice((-9, -2, 4, 11))
    steps = [f"{rng.randint(2, 9)} * {rng.randint(11, 19)} = {rng.randint(22, 171)}" for _ in range(rng.randrange(9))]
    text = CLASSES[name][0]
    end = text.format(g=gold, w=wrong, twice=2 * gold)
    if end.startswith("<think>"):
        steps = []
    return "\n".join([*steps, end]), f"-{gold}" if name in NEGATIVE else str(gold)


@pytest.mark.parametrize("name", CLASSES)
def test_each_class_is_decided_as_listed(name):
    rng = random.Random(name)
    expected = tuple(CLASSES[name][1:])
    for _ in range(60):
        response, gold = solution(name, rng)
        result = gsm8k.compute_score("openai/gsm8k", response, gold)
        strict = verl.compute_score(response, gold)
        flexible = verl.compute_score(response, gold, method="flexible")
        assert (result["accuracy"], strict, flexible) == expected, (response, gold, result)
