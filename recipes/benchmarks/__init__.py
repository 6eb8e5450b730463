"""The benchmarks of `scripts/bench.py`: a module with a `command` each, and what these share."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def best_of(
    repeats: int, works: Mapping[str, Callable[[], Any]], clock: Callable[[], float] = time.process_time
) -> dict[str, float]:
    """Seconds of each work's fastest pass; the works take turns, so that a busy machine slows all of them alike.

    Args:
        repeats: passes of each.
        works: name -> what is timed.
        clock: CPU time, which other work on the machine hardly changes, or `time.perf_counter`.
    """
    best = dict.fromkeys(works, float("inf"))
    for _ in range(repeats):
        for name, work in works.items():
            begin = clock()
            work()
            best[name] = min(best[name], clock() - begin)
    return best


def write_report(report: Mapping[str, Any], out: Path | None) -> None:
    """Write the figures to a JSON file, where one was asked for."""
    if out:
        out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
