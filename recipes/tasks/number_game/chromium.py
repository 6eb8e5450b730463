"""The number game in headless Chromium, driven by Playwright; several windows at once."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import TypeVar

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
STATE = "({...document.getElementById('game').dataset})"
CENTRES = """() => [...document.querySelectorAll('.card'), document.getElementById('go')].map((each) => {
    const box = each.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })"""
# Characters that no font has are drawn as the same empty box.
HAS_CHINESE = """() => { const draw = (text) => { const canvas = document.createElement('canvas'); canvas.width = 40;
    canvas.height = 40; const pen = canvas.getContext('2d'); pen.font = '30px sans-serif'; pen.fillText(text, 4, 32);
    return canvas.toDataURL(); }; return draw('数') !== draw('字'); }"""
GO = 3
"""The button's place in what `CENTRES` finds, behind the three cards."""
# Ctrl-C ends Playwright's driver too, and leaves futures that nobody awaits; what waits for the driver raises anyway.
logging.getLogger("asyncio").setLevel(logging.CRITICAL)

Job = TypeVar("Job")


def check_agreement(screen: ChromiumScreen, what: str, page: object, rules: object) -> None:
    """Raise RecipeError where the page contradicts the rules."""
    if page != rules:
        fix = "report this: page and rules differ"
        raise RecipeError(f"{what} {page}, and rules.py says {rules}", where=screen.name, fix=fix)


class ChromiumScreen:
    """One headless Chromium with one page; only the thread that makes it may use it. Failures are RecipeErrors."""

    def __init__(self, name: str) -> None:
        """Start the browser, `CHROMIUM` or the first of `NAMES`; `name` is the screen's in results and messages."""
        self.name = name
        named = os.environ.get("CHROMIUM")
        path = next((path for name in ([named] if named else NAMES) if (path := shutil.which(name))), None)
        if path is None:
            where = f"CHROMIUM={named}" if named else f"search path ({', '.join(NAMES)})"
            raise RecipeError("there is no Chromium", where=where, fix=INSTALL)
        try:
            from playwright.sync_api import sync_playwright
        except ImportError as error:
            raise RecipeError("playwright is not installed", where=name, fix="pip install playwright") from error
        self._playwright = sync_playwright().start()
        with ExitStack() as stack:
            stack.callback(self._playwright.stop)
            with self._naming(f"{path} does not start", INSTALL):
                self._browser = self._playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
                self._page = self._browser.new_page(reduced_motion="reduce")
            stack.pop_all()

    def open(self, deals: list[Deal], appearance: Appearance) -> None:
        """Load the page with these rounds; the appearance's screen size is the window's."""
        address = f"{PAGE.as_uri()}?{query(deals, appearance)}"
        with self._naming(f"the page {PAGE.as_uri()} does not load"):
            self._page.set_viewport_size({"width": appearance.width, "height": appearance.height})
            self._page.goto(address, timeout=LOADING_MS)
            self._page.wait_for_selector("#game[data-phase]", timeout=LOADING_MS)
            self._state = self._page.evaluate(STATE)
            has_characters = appearance.lang != "zh" or self._page.evaluate(HAS_CHINESE)
        if self._state["phase"] != "choose":
            why = self._state.get("error", f"it begins with {self._state['phase']!r}")
            raise RecipeError(f"the page refuses: {why}", where=address, fix="give options that the page knows")
        if not has_characters:
            fix = "install one (Debian: apt-get install fonts-noto-cjk), or leave zh out of the languages"
            raise RecipeError("no font here has Chinese characters", where="lang=zh", fix=fix)
        with self._naming():
            self._centres = self._page.evaluate(CENTRES)

    def screenshot(self) -> bytes:
        """The window as PNG, one image pixel for each CSS pixel."""
        with self._naming():
            return self._page.screenshot()

    def choose(self, position: int) -> str:
        """Click a card with the mouse; return the page's verdict, right or wrong."""
        self._click(position, "feedback")
        check_agreement(self, f"card {position} was clicked, the page says", self._state["choice"], str(position))
        return self._state["verdict"]

    def advance(self) -> None:
        """Click on to the next round, or to the final score."""
        last = int(self._state["round"]) + 1 == int(self._state["rounds"])
        self._click(GO, "over" if last else "choose")

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

    def _click(self, target: int, phase: str) -> None:
        """Click a card, or `GO`, and once more if the page is not in `phase` after that."""
        x, y = self._centres[target]
        for _ in range(2):
            with self._naming():
                self._page.mouse.click(x, y)
                self._state = self._page.evaluate(STATE)
            if self._state["phase"] == phase:
                return
        what = f"two clicks at {x:.0f}, {y:.0f} left the page in {self._state['phase']!r}"
        raise RecipeError(what, where=self.name, fix=AGAIN)

    @contextmanager
    def _naming(self, what: str = "the browser does not answer", fix: str = AGAIN) -> Iterator[None]:
        """Raise an error of Playwright's as a RecipeError."""
        try:
            yield
        except Exception as error:
            raise RecipeError(f"{what}: {first_line(error)}", where=self.name, fix=fix) from error


def run(
    jobs: list[Job],
    work: Callable[[ChromiumScreen, Job], None],
    workers: int,
    opened: Callable[[str], ChromiumScreen] = ChromiumScreen,
) -> None:
    """Do every job on one of `workers` screens, each in a thread of its own, which opens it.

    What a screen or a job raises, and Ctrl-C, is raised after all screens have ended the job that they were at: a
    thread in a browser's library while Python ends is a crash.
    """
    waiting, stop = iter(jobs), Event()  # `next` of a list's iterator is atomic

    def use(number: int) -> None:
        with closing(opened(f"chromium-{number}")) as screen:
            while not stop.is_set() and (job := next(waiting, None)) is not None:
                work(screen, job)

    with ThreadPoolExecutor(workers) as pool:
        try:
            screens = [pool.submit(use, number) for number in range(min(workers, len(jobs)))]
            wait(screens, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
    for screen in screens:
        screen.result()
