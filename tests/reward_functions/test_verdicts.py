"""Decided cases: what a response earns (verdicts.txt), and which answers are right as people write them (forms.tsv)."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from recipes.rewards.loading import load_reward

dispatch = load_reward("reward_functions/dispatch.py")
TASKS = ("countdown", "gsm8k", "number_game")
SCORE = {name: load_reward(f"reward_functions/{name}.py").compute_score for name in TASKS}


def read(name: str) -> Iterator[tuple[str, list[str]]]:
    """(head, lines) of every section of a file beside this one."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    for section in text.split("\n### ")[1:]:
        head, *lines = section.strip("\n").split("\n")
        yield head, lines


@pytest.mark.parametrize(("head", "lines"), list(read("verdicts.txt")), ids=lambda value: str(value)[:40])
def test_verdicts(head, lines):
    source, score, reason, form, truth = head.split(" ", 4)
    if source == "math":
        pytest.importorskip("math_verify", reason="the reward source math: math-verify is not installed")
    judge = SCORE.get(source, dispatch.compute_score)
    for line in lines:
        result = judge(source, json.loads(line), json.loads(truth))
        found = (round(result["score"], 4), result["reason"], result["format"])
        assert found == (float(score), reason, float(form)), line


FORMS = Path(__file__).with_name("forms.tsv").read_text(encoding="utf-8").splitlines()
ROWS = [line.split("\t") for line in FORMS if not line.startswith("%")]


@pytest.mark.parametrize("source", sorted({row[0] for row in ROWS}))
def test_forms_of_answers(source):
    if source == "math":
        pytest.importorskip("math_verify", reason="the reward source math: math-verify is not installed")
    rows = [(truth, response.replace("\\n", "\n"), right) for name, truth, response, right in ROWS if name == source]
    found = [(truth, text, f"{dispatch.compute_score(source, text, truth)['accuracy']:g}") for truth, text, _ in rows]
    assert found == rows
