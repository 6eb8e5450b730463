"""A process of its own for math-verify: reads one JSON question a line, answers one verdict a line.

math-verify's own limit on time is SIGALRM and counts what exceeds it as unequal, so it is off: the kernel ends this
process behind the processor time that `latex` allows a question.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time

MEMORY = 2 << 30  # bytes of address space


def verdict(gold: str, answer: str) -> str:
    """ "correct", "wrong", or "unparsable" where math-verify reads nothing in one of both."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    targets = (LatexExtractionConfig(), ExprExtractionConfig())
    golds, answers = (parse(text, targets, parsing_timeout=None) for text in (gold, answer))
    if not golds or not answers:
        return "unparsable"
    return "correct" if verify(golds, answers, timeout_seconds=None) else "wrong"


def main() -> None:
    """Answer until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # else the kernel writes the memory of what it ends to a file
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing that a library prints is an answer
    import math_verify  # noqa: F401  # seconds, before the first question's time begins

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
