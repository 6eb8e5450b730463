"""Countdown's reward against a brute-force solver, random notations, mutations, and Python's own parser."""

from __future__ import annotations

import ast
import importlib.util
import random
import re
from fractions import Fraction
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


def answer(text: str, gold: dict | str) -> dict:
    return countdown.compute_score("countdown", f"<think>some reasoning</think>\n<answer>{text}</answer>", gold)


@pytest.mark.parametrize("numbers", [(3, 8, 2), (7, 7, 5), (1, 2, 3, 4), (25, 50, 3, 6), (4, 4, 10, 10)])
def test_agrees_with_brute_force_on_every_expression(numbers):
    """All trees over all orders, each in a random notation, against two targets that they can make."""
    rng = random.Random(hash(numbers))
    values = [(tree, brute.value(tree)) for tree in brute.all_trees(numbers)]
    whole = sorted({int(v) for _, v in values if v is not None and v.denominator == 1 and v > 0})
    for target in rng.sample(whole, 2):
        gold = {"target": target, "numbers": list(numbers)}
        right = 0
        for tree, exact in values:
            text = brute.render(tree, rng.choice(list(brute.NOTATIONS)), rng)
            result = answer(text, gold)
            expected = "division_by_zero" if exact is None else "correct" if exact == target else "wrong_value"
            assert result["reason"] == expected, (text, exact, target)
            right += expected == "correct"
        assert right


PROBLEMS = st.tuples(st.lists(st.integers(1, 99), min_size=3, max_size=4), st.integers(0, 2**32))


def solved(problem: tuple[list[int], int]) -> tuple[random.Random, object, int, dict]:
    """A random problem that its own random tree solves: (rng, tree, target, truth)."""
    numbers, seed = problem
    rng = random.Random(seed)
    tree = brute.random_tree(rng, numbers)
    exact = brute.value(tree)
    assume(exact is not None and exact.denominator == 1)
    return rng, tree, int(exact), {"target": int(exact), "numbers": rng.sample(numbers, len(numbers))}


@settings(max_examples=120, deadline=None)
@given(problem=PROBLEMS, notation=st.sampled_from(sorted(brute.NOTATIONS)))
def test_solutions_in_any_notation_are_right(problem, notation):
    rng, tree, target, gold = solved(problem)
    text = brute.render(tree, notation, rng)
    assert answer(text, gold)["score"] == 1.0
    if target >= 0:
        assert answer(f"{text} = {target}", gold)["score"] == 1.0
        assert answer(f"{target} = {text}", gold)["score"] == 1.0
        assert answer(f"{text} = {target + 1}", gold)["reason"] == "false_equation"
    assert answer(text, gold | {"target": target + 1})["reason"] == "wrong_value"


@settings(max_examples=120, deadline=None)
@given(problem=PROBLEMS, data=st.data())
def test_mutated_solutions_are_not_right(problem, data):
    rng, tree, _, gold = solved(problem)
    text = brute.render(tree, "ascii", rng)
    at = data.draw(st.integers(0, len(text)))
    mutated = data.draw(
        st.sampled_from(
            [
                text[:at] + ")" + text[at:],
                text[:at] + "(" + text[at:],
                text + " + 0",
                text + " " + str(gold["numbers"][0]),
                "0" + text.lstrip("([ "),
                text + " =",
                text.replace(str(gold["numbers"][0]), "100"),
                text[:at] + "?" + text[at:],
            ]
        )
    )
    assert answer(mutated, gold)["score"] < 1.0


def python_value(text: str) -> tuple[Fraction | None, list[int]] | None:
    """Value and numbers by Python's own parser, exact; None where the text is no +, -, *, / expression."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return None
    numbers: list[int] = []

    def walk(node: ast.expr) -> Fraction | None:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            numbers.append(node.value)
            return Fraction(node.value)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
            inner = walk(node.operand)
            return -inner if inner is not None and isinstance(node.op, ast.USub) else inner
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
            left, right = walk(node.left), walk(node.right)
            if left is None or right is None or (isinstance(node.op, ast.Div) and right == 0):
                return None
            ops = {ast.Add: left.__add__, ast.Sub: left.__sub__, ast.Mult: left.__mul__, ast.Div: left.__truediv__}
            return ops[type(node.op)](right)
        raise SyntaxError

    try:
        return walk(node), numbers
    except SyntaxError:
        return None


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@settings(max_examples=600, deadline=None)
@given(text=st.lists(st.sampled_from([*"0123456789", *"+-*/()" * 2, " ", "12"]), min_size=1, max_size=14).map("".join))
def test_reads_what_python_reads(text):
    """Random strings over Python's own alphabet: the same language and the same exact values."""
    assume(text.strip())
    read = python_value(text)
    any_gold = {"target": 1, "numbers": [1]}
    if read is None or re.search(r"\b0[0-9]", text):  # Python takes 00 as a number
        assert answer(text, any_gold)["reason"] in {"unparsable", "forbidden_operator"}
        return
    exact, numbers = read
    if exact is None:
        assert answer(text, any_gold)["reason"] == "division_by_zero"
        return
    gold = {"target": exact.numerator, "numbers": numbers}
    assert answer(text, gold)["reason"] == ("correct" if exact.denominator == 1 else "wrong_value")
