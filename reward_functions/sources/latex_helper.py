"""The helper process for math-verify: reads one JSON question per line and writes one verdict per line.

math-verify's own time limit uses SIGALRM and counts an answer that exceeds it as unequal, so it is off: the kernel
kills this process when a question exceeds the CPU time that `latex` allows.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from typing import Any

MEMORY = 2 << 30  # bytes of address space


def verdict(gold: str, answer: str) -> str:
    """Return "correct", "wrong", or "unparsable" if math-verify can parse nothing in the gold or in the answer."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    targets = (LatexExtractionConfig(), ExprExtractionConfig())
    golds, answers = (parse(text, targets, parsing_timeout=None) for text in (gold, answer))
    if not golds or not answers:
        return "unparsable"
    return "correct" if verify(golds, answers, timeout_seconds=None) and not far(golds[0], answers[0]) else "wrong"


def far(gold: Any, answer: Any) -> bool:
    """Whether two numbers differ by more than a hundredth; math-verify rounds to six places, which makes 1/2004! 0."""
    try:
        return bool(gold.is_number and answer.is_number and abs((answer / gold).evalf() - 1) > 0.01)
    except (AttributeError, TypeError, ValueError, ZeroDivisionError):  # no numbers
        return False


def main() -> None:
    """Answer until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # else the kernel writes a core dump when it kills this process
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # so that a library's prints are not taken for an answer
    import math_verify  # noqa: F401  # takes seconds, so it precedes the first question's time limit

    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        over = int(time.process_time() + question["seconds"]) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (over, most))
        try:
            answer = verdict(question["gold"], question["answer"])
        except MemoryError:
            answer = "timeout"
        print(answer, file=answers, flush=True)


if __name__ == "__main__":
    main()
