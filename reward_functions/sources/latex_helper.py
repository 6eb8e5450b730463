"""A process of its own for math-verify: reads one JSON question a line, answers one verdict a line.

Each step's time is processor time, so that a loaded machine does not turn verdicts into timeouts. math-verify's own
limit is the clock on the wall (SIGALRM), and what exceeds it counts as unequal or unreadable; so it is off. `latex`
ends this process where a signal does not help.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

MEMORY = 2 << 30  # bytes of address space


class Late(BaseException):
    """A step took its processor time; no Exception, since math-verify and SymPy catch those."""


def _late(number: int, frame: object) -> None:
    raise Late


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise Late where what is inside takes more processor time."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def verdict(gold: str, answer: str, seconds: float) -> str:
    """ "correct", "wrong", "unparsable" (the answer), or "gold_unparsable".

    Raises:
        Late: reading one of them, or comparing them, took more than `seconds` of processor time.
    """
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    targets = (LatexExtractionConfig(), ExprExtractionConfig())
    with limited(seconds):
        golds = parse(gold, targets, parsing_timeout=None)
    if not golds:
        return "gold_unparsable"
    with limited(seconds):
        answers = parse(answer, targets, parsing_timeout=None)
    if not answers:
        return "unparsable"
    with limited(seconds):
        return "correct" if verify(golds, answers, timeout_seconds=None) else "wrong"


def main() -> None:
    """Answer until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    answers = os.fdopen(os.dup(1), "w")
    signal.signal(signal.SIGPROF, _late)
    os.dup2(2, 1)  # nothing that a library prints is an answer
    import math_verify  # noqa: F401  # seconds, before the first question's time begins

    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = verdict(question["gold"], question["answer"], question["seconds"])
        except (MemoryError, Late):
            answer = "timeout"
        print(answer, file=answers, flush=True)


if __name__ == "__main__":
    main()
