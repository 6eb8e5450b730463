"""What stated answers are taken for, source by source, in every place where an answer can stand: decisions.txt."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from recipes.data.rewards import load_reward

dispatch = load_reward("reward_functions/dispatch.py")

MARKED = ["<answer>{}</answer>", "\\boxed{{{}}}"]
FRAMES = {
    "gsm8k": [*MARKED, "#### {}", "<think>5</think>\n#### {}", "The answer is {}"],
    "math": MARKED,
    "math_reasoning": [*MARKED, "{}"],
    "qa": [MARKED[0], "{}", "Let me see.\nThe answer is: {}"],
    "classification": [MARKED[0], "{}", "Let me see.\nThe answer is: {}"],
}
BEHIND_WORK = "So I worked it all out, over here.\nAnd so: {}"  # where the last number of GSM8K's prose stands


def sections() -> list[tuple[str, str, dict[str, list[str]]]]:
    """(data source, ground truth, kind -> answers)."""
    text = Path(__file__).with_name("decisions.txt").read_text(encoding="utf-8")
    text = re.sub(r"\\u([0-9a-f]{4})", lambda match: chr(int(match[1], 16)), text)
    result = []
    for section in text.split("\n### ")[1:]:
        head, *lines = section.strip("\n").split("\n")
        answers: dict[str, list[str]] = {"+": [], "-": [], "0": []}
        for line in lines:
            answers[line[0]] += line[2:].split(" | ")
        result.append((*head.split(": ", 1), answers))
    return result


@pytest.mark.parametrize(("source", "truth", "answers"), sections(), ids=lambda value: str(value)[:30])
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
