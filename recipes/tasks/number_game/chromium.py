"""The number game in headless Chromium, driven by Playwright."""

from __future__ import annotations

import base64
import json
import os
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError
from recipes.tasks.number_game.rules import Appearance, Deal, query
from recipes.tasks.number_game.screens import Opener, Openers, ScreenLost, TapLost

PAGE = Path(__file__).with_name("web") / "index.html"
NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
# No GPU and no sandbox: containers have neither; the page is our own and reaches no network.
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-color-profile=srgb", "--disable-lcd-text")
INSTALL = "install it (Debian: apt-get install chromium), or name one with CHROMIUM=/path/to/chromium"
CHECK = "check --page_url, or leave it out to use the page of this repository"
STATE = "JSON.stringify(document.getElementById('game').dataset)"
CENTRES = """() => [...document.querySelectorAll('.card'), document.getElementById('go')].map((each) => {
    const box = each.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })"""
# Characters that no font has are drawn as the same empty box.
HAS_CHINESE = """() => { const draw = (text) => { const canvas = document.createElement('canvas'); canvas.width = 40;
    canvas.height = 40; const pen = canvas.getContext('2d'); pen.font = '30px sans-serif'; pen.fillText(text, 4, 32);
    return canvas.toDataURL(); }; return draw('数') !== draw('字'); }"""


def find_chromium() -> str:
    """The path of an installed Chromium: `CHROMIUM`, or the first of the usual names on the search path.

    Raises:
        RecipeError: there is none, with how to install it.
    """
    named = os.environ.get("CHROMIUM")
    path = next((path for name in ([named] if named else NAMES) if (path := shutil.which(name))), None)
    if path is None and named:
        raise RecipeError(f"there is no Chromium at {named}", where="CHROMIUM", fix=INSTALL)
    if path is None:
        raise RecipeError("no Chromium is installed", where=f"search path ({', '.join(NAMES)})", fix=INSTALL)
    return path


class ChromiumScreen:
    """One headless Chromium with one page; see `screens.Screen`. Use it in the thread that makes it."""

    def __init__(self, name: str = "chromium", *, address: str | None = None, seconds: float = 20.0) -> None:
        """Start the browser.

        Args:
            name: for results and messages.
            address: of the page; the one in this package where none is given.
            seconds: to wait for a page, or for a tap's effect.
        """
        self.name = name
        self._address = address or PAGE.as_uri()
        self._milliseconds = 1000 * seconds
        self._page: Any = None
        self._centres: list[list[float]] = []
        self._state: dict[str, str] = {}
        path = find_chromium()
        try:
            from playwright.sync_api import Error, TimeoutError, sync_playwright
        except ImportError as error:
            raise RecipeError("playwright is not installed", where=name, fix="pip install playwright") from error
        self._error, self._timeout = Error, TimeoutError
        self._playwright = sync_playwright().start()
        try:
            self._browser = self._playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        except Error as error:
            self._playwright.stop()
            raise RecipeError(f"{path} does not start: {_first_line(error)}", where=name, fix=INSTALL) from error

    def open(self, deals: list[Deal], appearance: Appearance) -> None:
        """Load the page with these rounds; the appearance's screen size is the window's."""
        address = f"{self._address}?{query(deals, appearance)}"
        try:
            self._load(address, appearance)
        except Exception as error:
            if _is_gone(error) or not self._browser.is_connected():
                raise ScreenLost(f"{self.name}: {_first_line(error)}") from error
            if isinstance(error, self._error):
                with suppress(self._error):
                    self._page.context.close()  # its error page would interrupt the next one
                self._page = None
                what = f"the page does not load: {_first_line(error)}"
                raise RecipeError(what, where=self._address, fix=CHECK) from error
            raise
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

    def _load(self, address: str, appearance: Appearance) -> None:
        if self._page is None:
            context = self._browser.new_context(reduced_motion="reduce")
            self._page = context.new_page()
            self._session = context.new_cdp_session(self._page)
        self._page.set_viewport_size({"width": appearance.width, "height": appearance.height})
        self._page.goto(address, timeout=self._milliseconds)
        with suppress(self._timeout):
            self._page.wait_for_selector("#game[data-phase]", timeout=self._milliseconds)
        if not self._page.query_selector("#game[data-phase]"):
            what = f"after {self._milliseconds / 1000:g} s the page shows no number game"
            raise RecipeError(what, where=self._address, fix=CHECK)

    def screenshot(self) -> bytes:
        """The window as PNG, a pixel for a pixel."""
        return base64.b64decode(self._send("Page.captureScreenshot", {"format": "png"})["data"])

    def choose(self, position: int) -> str:
        """Click a card with the mouse; the verdict of the page, right or wrong."""
        self._click(self._centres[position], "feedback")
        if self._state["choice"] != str(position):
            raise TapLost(f"card {position} was tapped, and the page took it for card {self._state['choice']}")
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
            try:
                end()
            except Exception as error:
                if not (isinstance(error, self._error) or _is_gone(error)):
                    raise

    def _click(self, centre: list[float], phase: str) -> None:
        """Click, and again if the page did not notice, until it is in `phase`."""
        x, y = centre
        for _ in range(2):
            for kind in ("mousePressed", "mouseReleased"):
                mouse = {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1}
                self._send("Input.dispatchMouseEvent", mouse)
            self._state = self._read_state()
            if self._state["phase"] == phase:
                return
        raise TapLost(f"a click at {x:.0f}, {y:.0f} left the page in {self._state['phase']!r}")

    def _read_state(self) -> dict[str, str]:
        return json.loads(self._send("Runtime.evaluate", {"expression": STATE})["result"]["value"])

    def _send(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """One message of Chromium's own protocol, which costs a fraction of Playwright's calls."""
        try:
            return self._session.send(method, parameters)
        except Exception as error:
            if isinstance(error, self._error) or _is_gone(error):
                raise ScreenLost(f"{self.name}: {_first_line(error)}") from error
            raise


def windows(workers: int, page_url: str | None = None) -> Openers:
    """Return a function that gives openers of Chromium windows, at most as many as there are jobs.

    Args:
        workers: windows at once.
        page_url: of the page, None for the one in this package.
    """

    def openers(jobs: int) -> list[Opener]:
        find_chromium()
        return [partial(ChromiumScreen, f"chromium-{number}", address=page_url) for number in range(min(workers, jobs))]

    return openers


def _is_gone(error: Exception) -> bool:
    """The browser was closed, or Playwright's own process ended, which it reports with a bare Exception."""
    return any(text in str(error).lower() for text in ("has been closed", "connection closed"))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
