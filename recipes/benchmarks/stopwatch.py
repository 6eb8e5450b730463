"""Time several graders over the same inputs in the same process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Timing:
    """One grader's best pass over all inputs.

    `seconds` is CPU time, which other work on the machine hardly changes; `full_marks` counts scores of 1.0.
    """

    name: str
    seconds: float
    inputs: int
    full_marks: int

    @property
    def microseconds(self) -> float:
        """Per input."""
        return self.seconds / self.inputs * 1e6


def race(graders: dict[str, Callable[..., Any]], inputs: dict[str, Sequence[tuple]], repeats: int) -> list[Timing]:
    """Time each grader over its inputs; passes take turns, so that a busy machine slows all of them alike.

    Args:
        graders: name -> function that returns a number, or a dict with `score`.
        inputs: name -> argument tuples, the same completions for every name, in the form that the grader takes.
        repeats: passes per grader; the fastest counts.
    """
    best = dict.fromkeys(graders, float("inf"))
    full = dict.fromkeys(graders, 0)
    for _ in range(repeats):
        for name, grade in graders.items():
            marks = 0
            begin = time.process_time()
            for arguments in inputs[name]:
                score = grade(*arguments)
                marks += (score["score"] if type(score) is dict else score) == 1.0
            best[name] = min(best[name], time.process_time() - begin)
            full[name] = marks
    return [Timing(name, best[name], len(inputs[name]), full[name]) for name in graders]
