"""The number game in headless Chromium, driven by Playwright; several windows at once."""

from __future__ import annotations

import base64
import json
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from recipes.errors import RecipeError, first_line
from recipes.tasks.number_game.rules import Appearance, Deal, query

PAGE = Path(__file__).with_name("web") / "index.html"
LOADING_MS = 20_000
"""Milliseconds that the page has to load."""
NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
# No GPU and no sandbox: containers have neither; the page is our own and reaches no network.
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-color-profile=srgb", "--disable-lcd-text")
INSTALL = "install it (Debian: apt-get install chromium), or name one with CHROMIUM=/path/to/chromium"
AGAIN = "repeat the command; finished episodes are kept"
STATE = "JSON.stringify(document.getElementById('game').dataset)"
CENTRES = """() => [...document.querySelectorAll('.card'), document.getElementById('go')].map((each) => {
    const box = each.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })"""
# Characters that no font has are drawn as the same empty box.
HAS_CHINESE = """() => { const draw = (text) => { const canvas = document.createElement('canvas'); canvas.width = 40;
    canvas.height = 40; const pen = canvas.getContext('2d'); pen.font = '30px sans-serif'; pen.fillText(text, 4, 32);
    return canvas.toDataURL(); }; return draw('数') !== draw('字'); }"""
PATIENCE_S = 15.0
"""Seconds that each window has after Ctrl-C to finish its current episode."""

Job = TypeVar("Job")


def check_agreement(screen: ChromiumScreen, what: str, page: object, rules: object) -> None:
    """Raise RecipeError where the page contradicts the rules."""
    if page != rules:
        fix = "report this: page and rules differ"
        raise RecipeError(f"{what} {page}, and rules.py says {rules}", where=screen.name, fix=fix)


def find_chromium() -> str:
    """The path of an installed Chromium: `CHROMIUM`, or the first of the usual names on the search path.

    Raises:
        RecipeError: no Chromium is found; the message says how to install it.
    """
    named = os.environ.get("CHROMIUM")
    path = next((path for name in ([named] if named else NAMES) if (path := shutil.which(name))), None)
    if path is None:
        where = "CHROMIUM" if named else f"search path ({', '.join(NAMES)})"
        raise RecipeError(f"there is no Chromium{f' at {named}' if named else ''}", where=where, fix=INSTALL)
    return path


class ChromiumScreen:
    """One headless Chromium with one page; only the thread that makes it may use it. Failures are RecipeErrors."""

    def __init__(self, name: str) -> None:
        """Start the browser; `name` is the screen's in results and messages."""
        self.name = name
        self._page: Any = None
        self._centres: list[list[float]] = []
        self._state: dict[str, str] = {}
        path = find_chromium()
        try:
            from playwright.sync_api import sync_playwright
        except ImportError as error:
            raise RecipeError("playwright is not installed", where=name, fix="pip install playwright") from error
        self._playwright = sync_playwright().start()
        try:
            self._browser = self._playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        except Exception as error:
            self._playwright.stop()
            raise self._error(error, f"{path} does not start", INSTALL) from error

    def open(self, deals: list[Deal], appearance: Appearance) -> None:
        """Load the page with these rounds; the appearance's screen size is the window's."""
        address = f"{PAGE.as_uri()}?{query(deals, appearance)}"
        try:
            if self._page is None:
                context = self._browser.new_context(reduced_motion="reduce")
                self._page = context.new_page()
                self._session = context.new_cdp_session(self._page)
            self._page.set_viewport_size({"width": appearance.width, "height": appearance.height})
            self._page.goto(address, timeout=LOADING_MS)
            self._page.wait_for_selector("#game[data-phase]", timeout=LOADING_MS)
        except Exception as error:
            raise self._error(error, f"the page {PAGE.as_uri()} does not load") from error
        self._state = self._read_state()
        if self._state["phase"] != "choose":
            why = self._state.get("error", f"it begins with {self._state['phase']!r}")
            raise RecipeError(f"the page refuses: {why}", where=address, fix="give options that the page knows")
        if appearance.lang == "zh" and not self._page.evaluate(HAS_CHINESE):
            raise RecipeError(
                "no font here has Chinese characters: every screenshot would show empty boxes",
                where="lang=zh",
                fix="install one (Debian: apt-get install fonts-noto-cjk), or leave zh out of the languages",
            )
        self._centres = self._page.evaluate(CENTRES)

    def screenshot(self) -> bytes:
        """The window as PNG, one image pixel for each CSS pixel."""
        return base64.b64decode(self._send("Page.captureScreenshot", {"format": "png"})["data"])

    def choose(self, position: int) -> str:
        """Click a card with the mouse; return the page's verdict, right or wrong."""
        self._click(self._centres[position], "feedback")
        check_agreement(self, f"card {position} was clicked, the page says", self._state["choice"], str(position))
        return self._state["verdict"]

    def advance(self) -> None:
        """Click on to the next round, or to the final score."""
        last = int(self._state["round"]) + 1 == int(self._state["rounds"])
        self._click(self._centres[3], "over" if last else "choose")

    def deal(self) -> Deal:
        """The round that the page says it shows."""
        left, middle, right = map(int, self._state["digits"])
        return Deal(self._state["light"], (left, middle, right))

    def score(self) -> int:
        """The score that the page says it shows."""
        return int(self._state["score"])

    def close(self) -> None:
        """End the browser, and Playwright even where the browser or Playwright's own process is gone."""
        for end in (self._browser.close, self._playwright.stop):
            with suppress(Exception):
                end()

    def _click(self, centre: list[float], phase: str) -> None:
        """Click, and once more if the page is not in `phase` after that."""
        x, y = centre
        for _ in range(2):
            for kind in ("mousePressed", "mouseReleased"):
                mouse = {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1}
                self._send("Input.dispatchMouseEvent", mouse)
            self._state = self._read_state()
            if self._state["phase"] == phase:
                return
        what = f"two clicks at {x:.0f}, {y:.0f} left the page in {self._state['phase']!r}"
        raise RecipeError(what, where=self.name, fix=AGAIN)

    def _read_state(self) -> dict[str, str]:
        return json.loads(self._send("Runtime.evaluate", {"expression": STATE})["result"]["value"])

    def _send(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """Send one DevTools protocol message, which costs a fraction of a Playwright call."""
        try:
            return self._session.send(method, parameters)
        except Exception as error:
            raise self._error(error, "the browser does not answer") from error

    def _error(self, error: Exception, what: str, fix: str = AGAIN) -> RecipeError:
        return RecipeError(f"{what}: {first_line(error)}", where=self.name, fix=fix)


Opener = Callable[[], ChromiumScreen]


def windows(workers: int) -> list[Opener]:
    """Functions that each open a window of Chromium."""
    find_chromium()
    return [partial(ChromiumScreen, f"chromium-{number}") for number in range(workers)]


def run(jobs: list[Job], openers: list[Opener], work: Callable[[ChromiumScreen, Job], None]) -> None:
    """Do every job on one of the screens, each screen in its own thread.

    Args:
        openers: each makes a screen, in the thread that uses it.
        work: does one job.

    Raises:
        RecipeError: the first one that a screen or a job raised, after the other screens finished their current job.
        KeyboardInterrupt: Ctrl-C; each screen first has `PATIENCE_S` seconds to finish its current job.
    """
    waiting, stop = iter(jobs), threading.Event()  # `next` of a list's iterator is atomic
    failures: list[BaseException] = []

    def use(opener: Opener) -> None:
        try:
            screen = opener()
            try:
                while not stop.is_set() and (job := next(waiting, None)) is not None:
                    work(screen, job)
            finally:
                screen.close()
        except BaseException as error:  # noqa: BLE001 raised again in the caller's thread
            failures.append(error)
            stop.set()

    threads = [threading.Thread(target=use, args=(opener,), daemon=True) for opener in openers[: len(jobs)]]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # so that Ctrl-C gets through
    except KeyboardInterrupt:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)  # a thread that is alive when Python exits crashes it
        raise
    if failures:
        raise failures[0]
