"""Public graders' behaviour, written again for differential tests and benchmarks; it stands here because it evals."""

from __future__ import annotations

import importlib.util
import re
import string
from collections import Counter
from pathlib import Path
from types import ModuleType

FORMAT_SCORE = 0.1


def tinyzero_score(sequence: str, target: int, numbers: list[int]) -> float:
    """TinyZero's Countdown rule: the last answer block on the last line behind `Assistant:`, a regex, and `eval`.

    Args:
        sequence: prompt and response in one string.
        target, numbers: the truth.

    Returns:
        1.0 right, 0.1 for any other answer block, 0.0 without one.
    """
    behind = re.split(r"Assistant:|<\|im_start\|>assistant", sequence, maxsplit=1)[1:]
    blocks = re.findall(r"<answer>(.*?)</answer>", behind[0].split("\n")[-1]) if behind else []
    if not blocks:
        return 0.0
    answer = blocks[-1].strip()
    try:
        if sorted(int(run) for run in re.findall(r"\d+", answer)) != sorted(numbers):
            return FORMAT_SCORE
        if not re.match(r"^[\d+\-*/().\s]+$", answer):
            return FORMAT_SCORE
        value = eval(answer, {"__builtins__": None}, {})
        return 1.0 if abs(value - target) < 1e-5 else FORMAT_SCORE
    except Exception:  # the rule that is described here really does swallow everything
        return FORMAT_SCORE


def squad_f1(prediction: str, gold: str) -> float:
    """SQuAD v1.1's F1: over the words of both texts as multisets; no case, ASCII punctuation or articles."""

    def words(text: str) -> list[str]:
        kept = "".join(character for character in text.lower() if character not in string.punctuation)
        return re.sub(r"\b(a|an|the)\b", " ", kept).split()

    predicted, right = words(prediction), words(gold)
    shared = sum((Counter(predicted) & Counter(right)).values())
    return 2 * shared / (len(predicted) + len(right)) if shared else 0.0


def easyr1_number_game(response: str) -> str:
    """EasyR1's number game rule: the first character that is 0, 1 or 2 is the answer; "" where there is none."""
    found = re.search("[012]", response)
    return found.group(0) if found else ""


def verl_grader(name: str) -> ModuleType:
    """A file of verl's graders by itself: importing `verl` takes seconds."""
    package = importlib.util.find_spec("verl")
    path = Path(package.submodule_search_locations[0]) / "utils" / "reward_score" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"verl_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
