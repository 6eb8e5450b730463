"""Several screens at once: every job is done once, jobs of lost screens go to others, failures come through."""

from __future__ import annotations

import _thread
import threading
import time
from functools import partial

import pytest

from recipes.errors import RecipeError
from recipes.tasks.number_game.screens import ScreenLost, run


class Stub:
    """A screen that must be closed in the thread that opened it."""

    def __init__(self, name, closed):
        self.name, self._closed, self.thread = name, closed, threading.get_ident()

    def close(self):
        assert threading.get_ident() == self.thread
        self._closed.append(self.name)


def test_every_job_is_done_once_and_those_of_a_lost_screen_by_others():
    done, closed, lost = [], [], threading.Event()

    def work(screen, job):
        assert threading.get_ident() == screen.thread
        if screen.name == "bad":
            lost.set()
            raise ScreenLost("pulled out")
        assert lost.wait(60)
        done.append(job)

    report = run(range(50), [partial(Stub, name, closed) for name in ("a", "bad", "c")], work)
    assert (sorted(done), sorted(closed), report.unfinished) == (list(range(50)), ["a", "bad", "c"], [])
    assert [(name, why) for name, _, why in report.dropped] == [("bad", "pulled out")]


def test_the_first_failure_is_raised_and_bugs_before_mistakes():
    barrier = threading.Barrier(2)

    def work(screen, job):
        barrier.wait(60)
        raise RecipeError("mend it") if job == 0 else ZeroDivisionError("bug")

    with pytest.raises(ZeroDivisionError):
        run([0, 1], [partial(Stub, name, []) for name in "ab"], work)
    with pytest.raises(TypeError):
        run([1], [Stub], work)  # a screen that cannot be opened


def test_ctrl_c_waits_until_the_screens_are_closed():
    """A thread in a browser's library while Python ends is a crash."""
    done, closed = [], []

    def work(screen, job):
        _thread.interrupt_main()
        time.sleep(0.5)
        done.append(job)

    with pytest.raises(KeyboardInterrupt):
        run([1, 2, 3], [partial(Stub, "a", closed)], work)
    assert (done, closed) == ([1], ["a"]), "what was begun is ended, and nothing else is begun"
