"""Screens on which the number game is played, and playing on several of them at once."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from recipes.errors import RecipeError
from recipes.tasks.number_game.rules import Appearance, Deal

Job = TypeVar("Job")
PATIENCE_S = 15.0  # after Ctrl-C, for screens to end what they are at


class ScreenLost(Exception):
    """The browser died. What it was playing can be played in another window."""


class TapLost(Exception):
    """A tap changed nothing on the screen, after a second try."""


class Screen(Protocol):
    """One screen, used by one thread.

    Its methods raise `ScreenLost` where it went away, `TapLost` where a tap did nothing, and `RecipeError` for what a
    user can mend, such as a page that does not load.
    """

    name: str

    def open(self, deals: list[Deal], appearance: Appearance) -> None:
        """Load the page with these rounds and wait until the first one can be played."""

    def screenshot(self) -> bytes:
        """The screen as PNG."""

    def choose(self, position: int) -> str:
        """Tap a card; the page's verdict, right or wrong."""

    def advance(self) -> None:
        """Tap on to the next round, or to the final score, and wait for it."""

    def deal(self) -> Deal:
        """The round on the screen as the page itself states it."""

    def score(self) -> int:
        """The score as the page itself states it."""

    def close(self) -> None:
        """Free what it holds; never raises for a screen that is gone."""


Opener = Callable[[], Screen]
Openers = Callable[[int], list[Opener]]
"""For a number of jobs functions that each open a screen, at most as many as there are jobs."""


def check_agreement(screen: Screen, what: str, page: object, rules: object) -> None:
    """Stop where the page contradicts the rules."""
    if page != rules:
        raise RecipeError(
            f"{what} {page}, and rules.py says {rules}", where=screen.name, fix="report this: page and rules differ"
        )


@dataclass
class Report(Generic[Job]):
    """Jobs that were not done, with the reasons.

    Attributes:
        dropped: for each screen that went away: its name, the job that it had begun, and why.
        unfinished: jobs that no screen was left for.
    """

    dropped: list[tuple[str, Job, str]] = field(default_factory=list)
    unfinished: list[Job] = field(default_factory=list)


def run(jobs: Iterable[Job], openers: list[Opener], work: Callable[[Screen, Job], None]) -> Report[Job]:
    """Do every job on one of the screens, each screen in its own thread.

    Args:
        jobs: what there is to do; each is done whole by one screen.
        openers: each makes a screen, in the thread that uses it.
        work: does one job. Where it raises `ScreenLost` that screen is not used again and the job goes to another.

    Raises:
        RecipeError: the first one that a screen or a job raised, after the other screens ended the job they had.
            Whatever else is raised is a bug and raised here as well.
        KeyboardInterrupt: after the screens were closed.
    """
    waiting = deque(jobs)
    left = len(waiting)
    lock, stop = threading.Lock(), threading.Event()
    report: Report[Job] = Report()
    failures: list[BaseException] = []

    def do_jobs(screen: Screen) -> None:
        nonlocal left
        while left and not stop.is_set():
            try:
                job = waiting.popleft()
            except IndexError:
                stop.wait(0.1)  # another screen may drop out and give its job back
                continue
            try:
                work(screen, job)
            except ScreenLost as error:
                report.dropped.append((screen.name, job, str(error)))
                waiting.append(job)
                return
            with lock:
                left -= 1

    def use(opener: Callable[[], Screen]) -> None:
        try:
            screen = opener()
            try:
                do_jobs(screen)
            finally:
                screen.close()
        except BaseException as error:  # noqa: BLE001 raised again in the caller's thread
            failures.append(error)
            stop.set()

    threads = [threading.Thread(target=use, args=(opener,), daemon=True) for opener in openers]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # so that Ctrl-C gets through
    except KeyboardInterrupt:
        stop.set()
        deadline = time.monotonic() + PATIENCE_S
        for thread in threads:
            if thread.is_alive():  # one that lives on while Python ends takes it down with a crash
                thread.join(max(0.0, deadline - time.monotonic()))
        raise
    if failures:
        raise next((failure for failure in failures if not isinstance(failure, RecipeError)), failures[0])
    report.unfinished = list(waiting)
    return report
