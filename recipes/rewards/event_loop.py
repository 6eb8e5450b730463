"""One event loop a process for async rewards."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")
_loop: asyncio.AbstractEventLoop | None = None
_starting = threading.Lock()
THREAD = "async rewards"
"""Name of the thread whose event loop runs async rewards."""


def awaited(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Return what an async reward gives, or raise what it raises; several threads can wait at the same time.

    One event loop per process runs all of them, as in verl: a client that a reward keeps between its calls is bound to
    the loop of the first call. Raises RuntimeError in that loop's thread, which would deadlock.
    """
    loop = _started_loop()
    if threading.current_thread().name == THREAD:
        coroutine.close()
        raise RuntimeError("an async reward awaits another one itself: `await` it there")
    waiting = None
    try:
        waiting = asyncio.run_coroutine_threadsafe(coroutine, loop)
        return waiting.result()
    except BaseException:  # Ctrl-C among them; cancelling a finished future does nothing
        if waiting is not None:
            waiting.cancel()
        raise


def _started_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _starting:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_run_loop, args=(_loop,), name=THREAD, daemon=True).start()
        return _loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    while True:  # SystemExit in a reward stops the loop; its next round passes the exception to the caller
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()


def _forget_loop() -> None:
    global _loop, _starting
    _loop, _starting = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_loop)  # a forked child has the loop object but not its thread
