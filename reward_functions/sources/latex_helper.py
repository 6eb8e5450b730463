"""A process of its own for math-verify: reads one JSON question a line, answers one verdict a line.

math-verify bounds its time with SIGALRM, which only works on a process's main thread. Here that is the thread it runs
on. `latex` ends this process where that does not help.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time

MEMORY = 2 << 30  # bytes of address space


def verdict(gold: str, answer: str, seconds: int) -> str:
    """ "correct", "wrong", "unparsable" (the answer), or "gold_unparsable"."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    targets = (LatexExtractionConfig(), ExprExtractionConfig())
    golds = parse(gold, targets, parsing_timeout=seconds)
    if not golds:
        return "gold_unparsable"
    answers = parse(answer, targets, parsing_timeout=seconds)
    if not answers:
        return "unparsable"
    return "correct" if verify(golds, answers, timeout_seconds=seconds) else "wrong"


def main() -> None:
    """Answer until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing that a library prints is an answer
    import math_verify  # noqa: F401  # seconds, before the first question's time begins

    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            began = time.monotonic()
            said = verdict(question["gold"], question["answer"], question["seconds"])
            if said != "correct" and time.monotonic() - began >= question["seconds"]:
                said = "timeout"  # to math-verify, what takes too long is unequal or unreadable
        except MemoryError:
            said = "timeout"
        print(said, file=answers, flush=True)


if __name__ == "__main__":
    main()
