"""Signals, time limits, property tests' examples, a browser, and the summary of what was not tested."""

import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

import recipes  # noqa: F401  # before verl: it completes torchvision

# A shell without job control starts background jobs with SIGINT ignored, and every process below inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A red run can be repeated, and no run is red by its examples alone; `--hypothesis-profile=default` draws others. The
# check for slow drawing measures seconds, which a busy machine exceeds.
settings.register_profile("repeatable", derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")

SLOW, MOST_SECONDS = 10, 900
"""Time limit of a test that starts a real trainer, with its fixtures: so many times the seconds that its file states,
which are those of two quiet cores. On a slow machine beside two busy loops it took five times as long. pyproject.toml
has the limit of the others."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set the time limit of the trainer's tests, and run the longest files first."""

    def seconds(item: pytest.Item) -> int:
        marker = item.get_closest_marker("trainer")
        return marker.kwargs.get("seconds", 0) if marker else 0

    for item in items:
        if seconds(item) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(min(SLOW * seconds(item), MOST_SECONDS)))
    items.sort(key=seconds, reverse=True)  # stable: tests of a file stay together, in their order


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line for each reason for which tests were skipped."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"NOT TESTED ({count} skipped): {reason}", yellow=True)


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """Path of an installed Chromium."""
    pytest.importorskip("playwright.sync_api", reason="pages in a browser: bash scripts/setup_env.sh brings playwright")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((path for name in names if (path := shutil.which(name))), None)
    return path or pytest.skip("pages and the number game in a browser: apt-get install chromium")


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
