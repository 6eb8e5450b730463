"""What holds for every test: signals as in a terminal, and in CI the same examples for property tests every time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from hypothesis import settings

# A shell without job control starts background jobs with SIGINT ignored, and every process below inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A red run can be repeated.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(scope="session")
def cpu_seconds() -> Callable[..., float]:
    """cpu_seconds(work, enough): the least processor time of up to three calls of work, in seconds.

    A first call below `enough` ends it. A busy machine slows one call, not three; quadratic work is slow every time.
    """

    def measure(work: Callable[[], object], enough: float) -> float:
        least = float("inf")
        for _ in range(3):
            begin = time.process_time()
            work()
            least = min(least, time.process_time() - begin)
            if least < enough:
                break
        return least

    return measure
