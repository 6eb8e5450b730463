"""Public graders, for differential tests."""

from __future__ import annotations

import importlib.util
import re
import string
from collections import Counter
from pathlib import Path
from types import ModuleType


def squad_f1(prediction: str, gold: str) -> float:
    """SQuAD v1.1's F1: over the words of both texts as multisets; no case, ASCII punctuation or articles."""

    def words(text: str) -> list[str]:
        kept = "".join(character for character in text.lower() if character not in string.punctuation)
        return re.sub(r"\b(a|an|the)\b", " ", kept).split()

    predicted, right = words(prediction), words(gold)
    shared = sum((Counter(predicted) & Counter(right)).values())
    return 2 * shared / (len(predicted) + len(right)) if shared else 0.0


def verl_grader(name: str) -> ModuleType:
    """A file of verl's graders by itself: importing `verl` takes seconds."""
    package = importlib.util.find_spec("verl")
    path = Path(package.submodule_search_locations[0]) / "utils" / "reward_score" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"verl_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
