"""Several screens at once: one thread for each, jobs handed out one by one, and screens that drop out."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from recipes.errors import RecipeError
from recipes.tasks.number_game.screens import Screen, ScreenLost

Job = TypeVar("Job")
PATIENCE_S = 15.0  # after Ctrl-C, for screens to end what they are at


@dataclass
class Report(Generic[Job]):
    """What became of the jobs.

    Attributes:
        dropped: for each screen that went away: its name, the job that it had begun, and why.
        unfinished: jobs that no screen was left for.
    """

    dropped: list[tuple[str, Job, str]] = field(default_factory=list)
    unfinished: list[Job] = field(default_factory=list)


def run(jobs: Iterable[Job], openers: list[Callable[[], Screen]], work: Callable[[Screen, Job], None]) -> Report[Job]:
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
    board = _Board(list(jobs))
    failures: list[BaseException] = []

    def serve(opener: Callable[[], Screen]) -> None:
        try:
            screen = opener()
            try:
                board.serve(screen, work)
            finally:
                screen.close()
        except BaseException as error:  # allowed: broad: raised again in the caller's thread
            failures.append(error)
            board.stop.set()

    threads = [threading.Thread(target=serve, args=(opener,), daemon=True) for opener in openers]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # so that Ctrl-C gets through
    except KeyboardInterrupt:
        board.stop.set()
        deadline = time.monotonic() + PATIENCE_S
        for thread in threads:
            if thread.is_alive():  # one that lives on while Python ends takes it down with a crash
                thread.join(max(0.0, deadline - time.monotonic()))
        raise
    if failures:
        raise next((failure for failure in failures if not isinstance(failure, RecipeError)), failures[0])
    return Report(board.dropped, list(board.waiting))


class _Board(Generic[Job]):
    """The jobs that wait and the number that are not done; screens come to it for work until that is 0."""

    def __init__(self, jobs: list[Job]) -> None:
        self.waiting = deque(jobs)
        self.dropped: list[tuple[str, Job, str]] = []
        self.stop = threading.Event()
        self._left = len(jobs)
        self._lock = threading.Lock()

    def serve(self, screen: Screen, work: Callable[[Screen, Job], None]) -> None:
        while self._left and not self.stop.is_set():
            try:
                job = self.waiting.popleft()
            except IndexError:
                self.stop.wait(0.1)  # another screen may drop out and give its job back
                continue
            try:
                work(screen, job)
            except ScreenLost as error:
                self.dropped.append((screen.name, job, str(error)))
                self.waiting.append(job)
                return
            with self._lock:
                self._left -= 1
