"""Where TinyZero's Countdown rule decides otherwise, each case with a reader's verdict; elsewhere both agree."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recipes.paths import ROOT


def load(path: Path):
    spec = importlib.util.spec_from_file_location(f"loaded_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


countdown = load(ROOT / "reward_functions" / "countdown.py")
brute = load(Path(__file__).with_name("countdown_trees.py"))
public = load(Path(__file__).with_name("public_graders.py"))


TARGET, NUMBERS = 24, [3, 8, 1, 1]
E1 = "<answer>3*8*1*1</answer>"
W1 = "<answer>3+8+1+1</answer>"


def score(response: str, gold: dict | None = None) -> dict:
    return countdown.compute_score("countdown", response, gold or {"target": TARGET, "numbers": NUMBERS})


# What TinyZero's rule decides otherwise: name -> response, ours, TinyZero's, and a reader's verdict.
DISAGREEMENTS = {
    # Right equations that it calls wrong, because it reads the last line only, needs ASCII, or cannot take a `=`.
    "several lines": ("<answer>3*8\n*1*1</answer>", 1.0, 0.0),  # a reader joins the lines
    "trailing newline": ("<answer>3*8*1*1</answer>\n", 1.0, 0.0),  # nothing but a newline follows
    "talk on a later line": ("<answer>3*8*1*1</answer>\nDone.", 1.0, 0.0),  # the answer was given
    "equals target": ("<answer>3*8*1*1 = 24</answer>", 1.0, 0.1),  # a true equation, digits 24 count as foreign there
    "times sign": ("<answer>3×8×1×1</answer>", 1.0, 0.1),
    "true minus sign": ("<answer>3*8+1−1</answer>", 1.0, 0.1),
    "LaTeX": (r"<answer>3 \times 8 \cdot \frac{1}{1}</answer>", 1.0, 0.1),
    "no-break space": ("<answer>3*8\u00a0*1*1</answer>", 1.0, 0.1),  # what copied text has for a blank
    "square brackets": ("<answer>[3*8]*1*1</answer>", 1.0, 0.1),
    # Answers that it takes although no answer was given.
    "answer in thinking": ("<think>is it <answer>3*8*1*1</answer>", 0.0, 1.0),  # still thinking
    "retracted by an open answer": ("<answer>3*8*1*1</answer> no, <answer>3+", 0.0, 1.0),  # cut while revising
    # Python's operators that the game does not have.
    "floor division": ("<answer>8*3//1//1</answer>", 0.0, 1.0),
    "power": ("<answer>8*3**1**1</answer>", 0.0, 1.0),
    # Credit of 0.1 that it gives to any block at all.
    "target copied": ("<answer>24</answer>", 0.0, 0.1),
    "leading zeros": ("<answer>3*8+1-01</answer>", 0.0, 0.1),
    "nothing in the tags": ("<answer></answer>", 0.0, 0.1),
    "prose": ("<answer>three times eight</answer>", 0.0, 0.1),
    "foreign numbers, no thinking": ("<answer>12+12</answer>", 0.0, 0.1),
}
AGREEMENTS = {
    "plain": (E1, 1.0),
    "last of several": (f"{W1} no, {E1}", 1.0),
    "last of several, wrong": (f"{E1} no, {W1}", 0.1),
    "wrong value": (W1, 0.1),
    "no answer": ("3*8*1*1", 0.0),
    "division by zero, no thinking": ("<think>so</think><answer>3*8/(1-1)</answer>", 0.1),
}


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_disagreements_with_tinyzero(name):
    response, ours, theirs = DISAGREEMENTS[name]
    assert score(response)["score"] == pytest.approx(ours)
    assert public.tinyzero_score("Assistant:" + response, TARGET, NUMBERS) == pytest.approx(theirs)
    assert ours != theirs


@pytest.mark.parametrize("name", AGREEMENTS)
def test_agreements_with_tinyzero(name):
    response, both = AGREEMENTS[name]
    assert score(response)["score"] == pytest.approx(both)
    assert public.tinyzero_score("Assistant:" + response, TARGET, NUMBERS) == pytest.approx(both)


def test_tinyzero_rounds_and_ours_does_not():
    """A large quotient: 1e-5 off the target passes there."""
    gold = {"target": 1, "numbers": [1000001, 1000000]}
    response = "<think>so</think><answer>1000001/1000000</answer>"
    assert public.tinyzero_score("Assistant:" + response, 1, gold["numbers"]) == 1.0
    assert score(response, gold)["reason"] == "wrong_value"


PROBLEMS = st.tuples(st.lists(st.integers(1, 99), min_size=3, max_size=4), st.integers(0, 2**32))


def solved(problem: tuple[list[int], int]) -> tuple[random.Random, object, int, dict]:
    """A random problem that its own random tree solves: (rng, tree, target, truth)."""
    numbers, seed = problem
    rng = random.Random(seed)
    tree = brute.random_tree(rng, numbers)
    exact = brute.value(tree)
    assume(exact is not None and exact.denominator == 1)
    return rng, tree, int(exact), {"target": int(exact), "numbers": rng.sample(numbers, len(numbers))}


@settings(max_examples=150, deadline=None)
@given(problem=PROBLEMS, data=st.data())
def test_plain_answers_are_judged_as_tinyzero_judges_them(problem, data):
    """ASCII expressions on one line, right or wrong, without the cases listed above: the same verdict."""
    rng, tree, _, gold = solved(problem)
    other = brute.random_tree(rng, gold["numbers"])
    shown = data.draw(st.sampled_from([tree, other]))
    text = " ".join(brute.render(shown, "ascii", rng).split()).replace("[", "(").replace("]", ")")
    theirs = public.tinyzero_score(f"Assistant:<answer>{text}</answer>", gold["target"], gold["numbers"])
    assert (score(f"<answer>{text}</answer>", gold)["score"] == 1.0) == (theirs == 1.0)
