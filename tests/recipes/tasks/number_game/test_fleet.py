"""Several screens at once: every job is done once, screens drop out, failures come through."""

from __future__ import annotations

import _thread
import threading
import time
from functools import partial

import pytest

from recipes.errors import RecipeError
from recipes.tasks.number_game import collect
from recipes.tasks.number_game.screens import ScreenLost


class Stub:
    """A screen that remembers its thread."""

    def __init__(self, name):
        self.name, self.closed = name, False
        self.thread = threading.get_ident()

    def close(self):
        assert threading.get_ident() == self.thread
        self.closed = True


def test_every_job_is_done_once():
    done, screens = [], []

    def opener(name):
        screens.append(Stub(name))
        return screens[-1]

    def work(screen, job):
        assert threading.get_ident() == screen.thread
        done.append(job)

    report = collect.run(range(50), [partial(opener, name) for name in "abc"], work)
    assert sorted(done) == list(range(50))
    assert (report.dropped, report.unfinished) == ([], [])
    assert all(screen.closed for screen in screens)


def test_a_job_of_a_dropped_screen_goes_to_one_that_was_idle():
    done = []
    taken = threading.Event()

    def work(screen, job):
        if screen.name == "bad":
            taken.set()
            raise ScreenLost("pulled out")
        assert taken.wait(5)
        done.append(job)

    report = collect.run([1, 2], [partial(Stub, "bad"), partial(Stub, "good")], work)
    assert sorted(done) == [1, 2]
    assert [(name, why) for name, _, why in report.dropped] == [("bad", "pulled out")]


def test_without_a_screen_left_jobs_are_unfinished():
    def work(screen, job):
        raise ScreenLost("gone")

    report = collect.run([1, 2, 3], [partial(Stub, "a"), partial(Stub, "b")], work)
    assert sorted(report.unfinished) == [1, 2, 3]
    assert len(report.dropped) == 2


def test_the_first_failure_is_raised_and_bugs_before_mistakes():
    def work(screen, job):
        if job == 0:
            raise RecipeError("mend it")

    with pytest.raises(RecipeError, match="mend it"):
        collect.run([0, 1], [partial(Stub, "a")], work)
    barrier = threading.Barrier(2)

    def both(screen, job):
        barrier.wait(5)
        raise RecipeError("mend it") if job == 0 else ZeroDivisionError("bug")

    with pytest.raises(ZeroDivisionError):
        collect.run([0, 1], [partial(Stub, "a"), partial(Stub, "b")], both)


def test_a_screen_that_cannot_be_opened():
    def opener():
        raise RecipeError("no browser")

    with pytest.raises(RecipeError, match="no browser"):
        collect.run([1], [opener], lambda screen, job: None)


def test_ctrl_c_waits_until_the_screens_are_closed():
    """A thread in a browser's library while Python ends is a crash."""
    screens, done = [], []

    def opener():
        screens.append(Stub("a"))
        return screens[-1]

    def work(screen, job):
        _thread.interrupt_main()
        time.sleep(0.5)
        done.append(job)

    with pytest.raises(KeyboardInterrupt):
        collect.run([1, 2, 3], [opener], work)
    assert done == [1], "what was begun is ended, and nothing else is begun"
    assert screens[0].closed
