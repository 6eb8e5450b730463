"""Several screens at once: every job is done once, jobs of lost screens go to others, failures come through."""

from __future__ import annotations

import _thread
import threading
import time
from functools import partial

import pytest

from recipes.tasks.number_game.screens import run


class Stub:
    """A screen that must be closed in the thread that opened it."""

    def __init__(self, name, closed):
        self.name, self._closed, self.thread = name, closed, threading.get_ident()

    def close(self):
        assert threading.get_ident() == self.thread
        self._closed.append(self.name)


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
