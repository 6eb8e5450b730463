"""Decided cases: what a stated answer is taken for (decisions.txt), and what a response earns (verdicts.txt)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from recipes.data.rewards import load_reward

dispatch = load_reward("reward_functions/dispatch.py")
SCORE = {
    name: load_reward(f"reward_functions/{name}.py").compute_score for name in ("countdown", "gsm8k", "number_game")
}

MARKED = ["<answer>{}</answer>", "\\boxed{{{}}}"]
FRAMES = {
    "gsm8k": [*MARKED, "#### {}", "<think>5</think>\n#### {}", "The answer is {}"],
    "math": MARKED,
    "math_reasoning": [*MARKED, "{}"],
    "qa": [MARKED[0], "{}", "Let me see.\nThe answer is: {}"],
    "classification": [MARKED[0], "{}", "Let me see.\nThe answer is: {}"],
}
BEHIND_WORK = "So I worked it all out, over here.\nAnd so: {}"  # where the last number of GSM8K's prose stands


def read(name: str) -> Iterator[tuple[str, list[str]]]:
    """(head, lines) of every section of a file beside this one."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    for section in text.split("\n### ")[1:]:
        head, *lines = section.strip("\n").split("\n")
        yield head, lines


@pytest.mark.parametrize(("head", "lines"), list(read("verdicts.txt")), ids=lambda value: str(value)[:40])
def test_verdicts(head, lines):
    source, score, reason, form, truth = head.split(" ", 4)
    judge = SCORE.get(source, dispatch.compute_score)
    for line in lines:
        result = judge(source, json.loads(line), json.loads(truth))
        assert (round(result["score"], 4), result["reason"], result["format"]) == (float(score), reason, float(form)), (
            line
        )


def decisions() -> list[tuple[str, str, dict[str, list[str]]]]:
    """(data source, ground truth, kind -> answers)."""
    result = []
    for head, lines in read("decisions.txt"):
        answers: dict[str, list[str]] = {"+": [], "-": [], "0": []}
        for line in lines:
            text = re.sub(r"\\u([0-9a-f]{4})", lambda match: chr(int(match[1], 16)), line)
            answers[text[0]] += text[2:].split(" | ")
        result.append((*head.split(": ", 1), answers))
    return result


@pytest.mark.parametrize(("source", "truth", "answers"), decisions(), ids=lambda value: str(value)[:30])
def test_decisions(source, truth, answers):
    if source == "math":
        pytest.importorskip("math_verify", reason="THE SOURCE math IS NOT TESTED: math-verify is not installed")
    truth = json.loads(truth) if truth.startswith("{") else truth
    wrong = []
    for kind, texts in answers.items():
        frames = FRAMES[source] + (["{}", BEHIND_WORK] if source == "gsm8k" and kind != "+" else [])
        for text in texts:
            for frame in frames:
                response = frame.format(text)
                result = dispatch.compute_score(source, response, truth)
                if result["accuracy"] != float(kind == "+") or (kind == "0" and result["score"]):
                    wrong.append((response, result["reason"]))
                elif source == "gsm8k" and frame in MARKED:
                    credit = 1.0 if kind == "+" else 0.1 if result["reason"] == "wrong" else 0.0
                    assert result["score"] == credit, response
    assert wrong == []
