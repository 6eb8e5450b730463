"""Screens of the number game: Chromium, its page, and what a screenshot shows."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
import threading
from contextlib import suppress
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from recipes.errors import RecipeError
from recipes.tasks.number_game.rules import PATCH, Deal, Look, query

if TYPE_CHECKING:
    from PIL.Image import Image

STYLE = Path(__file__).with_name("web") / "style.css"
SIGNATURE = b"\x89PNG\r\n\x1a\n"
END = b"IEND\xaeB`\x82"
TOLERANCE = 6  # of a channel's 255: screens with colour management shift colours a little
# The narrowest card that is looked for, as a share of the screenshot's shorter side.
NARROWEST = 0.12


class BrokenPNG(Exception):
    """The bytes are no PNG, or not a whole one."""


class Box(NamedTuple):
    """A rectangle in pixels; right and bottom are outside."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def centre(self) -> tuple[int, int]:
        """x and y of the middle, where a finger taps."""
        return (self.left + self.right) // 2, (self.top + self.bottom) // 2


class Colours(NamedTuple):
    """What a theme draws cards and buttons with, as (red, green, blue)."""

    face: tuple[int, int, int]
    button: tuple[int, int, int]
    right: tuple[int, int, int]
    wrong: tuple[int, int, int]


def decoded(data: bytes) -> Image:
    """The picture of a PNG, decoded to its last pixel.

    Raises:
        BrokenPNG: nothing, something else, or cut short.
    """
    import PIL.Image

    if not data.startswith(SIGNATURE):
        raise BrokenPNG(f"{len(data)} bytes that begin with {data[:8]!r} are no PNG")
    if END not in data[-256:]:  # Pillow takes pictures whose last bytes are missing
        raise BrokenPNG(f"a PNG of {len(data)} bytes is cut short")
    try:
        picture = PIL.Image.open(io.BytesIO(data), formats=("PNG",))
        picture.load()
    except (OSError, SyntaxError, ValueError) as error:
        raise BrokenPNG(f"a PNG of {len(data)} bytes is broken: {error}") from error
    return picture


def size(data: bytes) -> tuple[int, int]:
    """Width and height from a PNG's header."""
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def as_png(data: bytes) -> bytes:
    """A PNG of a picture in any common format; a PNG as it is.

    Raises:
        BrokenPNG: it cannot be read.
    """
    import PIL.Image

    if data.startswith(SIGNATURE):
        return data
    out = io.BytesIO()
    try:
        PIL.Image.open(io.BytesIO(data), formats=("JPEG", "WEBP", "BMP")).convert("RGB").save(out, format="PNG")
    except (OSError, SyntaxError, ValueError) as error:
        raise BrokenPNG(f"{len(data)} bytes are no picture: {error}") from error
    return out.getvalue()


def fitted(data: bytes, tokens: int) -> bytes:
    """A PNG whose sides are multiples of 28 and which takes at most `tokens` tokens; the same bytes where it does.

    A device's screenshot is scaled down with its proportions, but for rounding to whole patches.
    """
    import PIL.Image

    picture = decoded(data)
    scale = min(1.0, (tokens * PATCH * PATCH / (picture.width * picture.height)) ** 0.5)
    columns, lines = (max(1, round(side * scale / PATCH)) for side in picture.size)
    while columns * lines > tokens:
        columns, lines = (columns - 1, lines) if columns > lines else (columns, lines - 1)
    if picture.size == (columns * PATCH, lines * PATCH):
        return data
    smaller = picture.convert("RGB").resize((columns * PATCH, lines * PATCH), PIL.Image.Resampling.LANCZOS)
    out = io.BytesIO()
    smaller.save(out, format="PNG")
    return out.getvalue()


@cache
def colours(theme: str) -> Colours:
    """A theme's colours, from the page's own style sheet."""
    text = STYLE.read_text(encoding="utf-8")
    rule = r"^body \{" if theme == "paper" else rf'^\[data-theme="{theme}"\] \{{'
    found = re.search(rule + r"(.*?)\}", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise RecipeError(f"the page has no theme {theme!r}", where=str(STYLE), fix="choose one of its themes")
    block = found.group(1)
    return Colours(
        face=_hex(re.search(r"--face: (#\w{6})", block)),
        button=_hex(re.search(r"--button: (#\w{6})", block)),
        right=_hex(re.search(r"\.card\.right \{ background: (#\w{6})", text)),
        wrong=_hex(re.search(r"\.card\.wrong \{ background: (#\w{6})", text)),
    )


def find_cards(picture: Image, theme: str) -> list[Box] | None:
    """The three cards from left to right, none of them chosen yet; None where they are not to be seen."""
    boxes = _areas(picture, colours(theme).face, NARROWEST)
    for box in boxes:
        row = [other for other in boxes if _alike(box, other)]
        if len(row) == 3:
            return sorted(row)
    return None


def find_button(picture: Image, theme: str) -> Box | None:
    """The button that leads on, the largest area of its colour; None where it is not to be seen."""
    boxes = [box for box in _areas(picture, colours(theme).button, 0.2) if _width(box) > 2 * _height(box)]
    return max(boxes, key=lambda box: _width(box) * _height(box), default=None)


def verdict(picture: Image, card: Box, theme: str) -> str | None:
    """`right` or `wrong` where the page has coloured this card so, None where it has its ordinary face."""
    seen = _array(picture)
    inset_x, inset_y = _width(card) // 8, _height(card) // 8
    corners = [
        seen[y, x]
        for y in (card.top + inset_y, card.bottom - inset_y)
        for x in (card.left + inset_x, card.right - inset_x)
    ]
    for name in ("right", "wrong"):
        wanted = np.array(getattr(colours(theme), name))
        if sum(int(np.abs(corner - wanted).max()) <= TOLERANCE for corner in corners) >= 3:
            return name
    return None


def _areas(picture: Image, colour: tuple[int, int, int], narrowest: float) -> list[Box]:
    """Bounding boxes of the connected areas of a colour that are not too narrow for a card or button."""
    from scipy.ndimage import find_objects, label

    seen = _array(picture)
    areas, _ = label((np.abs(seen - np.array(colour)) <= TOLERANCE).all(axis=2))
    least = narrowest * min(picture.size)
    boxes = [Box(x.start, y.start, x.stop, y.stop) for y, x in find_objects(areas)]
    return [box for box in boxes if _width(box) >= least]


def _alike(box: Box, other: Box) -> bool:
    """Of the same size and on the same line, within the roundings of a scaled screen."""
    return all(
        abs(a - b) <= 4 for a, b in ((box.top, other.top), (box.bottom, other.bottom), (_width(box), _width(other)))
    )


def _array(picture: Image) -> np.ndarray:
    return np.asarray(picture.convert("RGB"), dtype=np.int16)


def _width(box: Box) -> int:
    return box.right - box.left


def _height(box: Box) -> int:
    return box.bottom - box.top


def _hex(found: re.Match[str] | None) -> tuple[int, int, int]:
    assert found is not None, f"{STYLE} does not give a colour where pixels.py looks for it"
    red, green, blue = bytes.fromhex(found.group(1)[1:])
    return red, green, blue


class ScreenLost(Exception):
    """The screen went away: a device dropped out, a browser died. What it was playing can be played elsewhere."""


class TapLost(Exception):
    """A tap changed nothing on the screen, after a second try."""


class Outcome(NamedTuple):
    """What a tap on a card did, seen on the screen or in the page: the game's own `verdict` (right or wrong)."""

    verdict: str
    seen: str  # "page" or "pixels"


class Screen(Protocol):
    """One screen, used by one thread.

    Its methods raise `ScreenLost` where it went away, `TapLost` where a tap did nothing, and `RecipeError` for what a
    user can mend, such as a page that does not load.
    """

    name: str

    def open(self, deals: list[Deal], look: Look) -> None:
        """Load the page with these rounds and wait until the first one can be played."""

    def screenshot(self) -> bytes:
        """The screen as PNG."""

    def choose(self, position: int) -> Outcome:
        """Tap a card and wait for the page's feedback."""

    def advance(self) -> None:
        """Tap on to the next round, or to the final score, and wait for it."""

    def deal(self) -> Deal | None:
        """The round on the screen as the page itself states it; None where it cannot be asked."""

    def score(self) -> int | None:
        """The score as the page itself states it; None where it cannot be asked."""

    def close(self) -> None:
        """Free what it holds; never raises for a screen that is gone."""


WEB = Path(__file__).with_name("web")
PORT = 8931  # on the device; here any free port


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


@cache
def serve_page() -> int:
    """Serve the page on 127.0.0.1 until the process ends; the port, the same at every call."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(WEB)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


PAGE = Path(__file__).with_name("web") / "index.html"
NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
# No GPU and no sandbox: containers have neither; the page is our own and reaches no network.
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-color-profile=srgb", "--disable-lcd-text")
INSTALL = "install it (Debian: apt-get install chromium), or name one with CHROMIUM=/path/to/chromium"
CHECK = "check --page_url, or leave it out to use the page of this repository"
STATE = "JSON.stringify(document.getElementById('game').dataset)"
BOXES = """() => [...document.querySelectorAll('.card'), document.getElementById('go')].map((each) => {
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
    if named:
        if not shutil.which(named):
            raise RecipeError(f"there is no Chromium at {named}", where="CHROMIUM", fix=INSTALL)
        return named
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise RecipeError("no Chromium is installed", where=f"search path ({', '.join(NAMES)})", fix=INSTALL)
    return found


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
        self._points: list[list[float]] = []
        self._state: dict[str, str] = {}
        path = find_chromium()
        try:
            from playwright.sync_api import Error, TimeoutError, sync_playwright
        except ImportError as error:
            raise RecipeError("playwright is not installed", where=name, fix="pip install playwright") from error
        self._error, self._timeout = Error, TimeoutError
        self._engine = sync_playwright().start()
        try:
            self._browser = self._engine.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        except Error as error:
            self._engine.stop()
            raise RecipeError(f"{path} does not start: {_first_line(error)}", where=name, fix=INSTALL) from error

    def open(self, deals: list[Deal], look: Look) -> None:
        """Load the page with these rounds; a look's screen size is the window's."""
        address = f"{self._address}?{query(deals, look)}"
        try:
            if self._page is None:
                context = self._browser.new_context(reduced_motion="reduce")
                self._page = context.new_page()
                self._session = context.new_cdp_session(self._page)
            self._page.set_viewport_size({"width": look.width, "height": look.height})
            self._page.goto(address, timeout=self._milliseconds)
            with suppress(self._timeout):
                self._page.wait_for_selector("#game[data-phase]", timeout=self._milliseconds)
            if not self._page.query_selector("#game[data-phase]"):
                raise RecipeError(
                    f"after {self._milliseconds / 1000:g} s the page shows no number game",
                    where=self._address,
                    fix=CHECK,
                )
        except Exception as error:
            if _is_gone(error) or not self._browser.is_connected():
                raise ScreenLost(f"{self.name}: {_first_line(error)}") from error
            if isinstance(error, self._error):
                self._not_loaded(error)
            raise
        self._state = self._read_state()
        if self._state["phase"] != "choose":
            why = self._state.get("error", f"it begins with {self._state['phase']!r}")
            raise RecipeError(f"the page refuses: {why}", where=address, fix="give options that the page knows")
        if look.lang == "zh" and not self._page.evaluate(HAS_CHINESE):
            raise RecipeError(
                "no font here has Chinese characters: every screenshot would show empty boxes",
                where="lang=zh",
                fix="install one (Debian: apt-get install fonts-noto-cjk), or leave zh out of the languages",
            )
        self._points = self._page.evaluate(BOXES)

    def screenshot(self) -> bytes:
        """The window as PNG, a pixel for a pixel."""
        return base64.b64decode(self._send("Page.captureScreenshot", {"format": "png"})["data"])

    def choose(self, position: int) -> Outcome:
        """Click a card with the mouse; the page says what came of it."""
        self._click(self._points[position], "feedback")
        if self._state["choice"] != str(position):
            raise TapLost(f"card {position} was tapped, and the page took it for card {self._state['choice']}")
        return Outcome(self._state["verdict"], "page")

    def advance(self) -> None:
        """Click on to the next round, or to the final score."""
        last = int(self._state["round"]) + 1 == int(self._state["rounds"])
        self._click(self._points[3], "over" if last else "choose")

    def deal(self) -> Deal | None:
        """The round that the page says it shows."""
        left, middle, right = map(int, self._state["digits"])
        return Deal(self._state["light"], (left, middle, right))

    def score(self) -> int | None:
        """The score that the page says it shows."""
        return int(self._state["score"])

    def close(self) -> None:
        """End the browser, and Playwright even where the browser or Playwright's own process is gone."""
        for end in (self._browser.close, self._engine.stop):
            try:
                end()
            except Exception as error:
                if not (isinstance(error, self._error) or _is_gone(error)):
                    raise

    def _click(self, point: list[float], phase: str) -> None:
        """Click, and again if the page did not notice, until it is in `phase`."""
        for _ in range(2):
            for kind in ("mousePressed", "mouseReleased"):
                self._send(
                    "Input.dispatchMouseEvent",
                    {"type": kind, "x": point[0], "y": point[1], "button": "left", "clickCount": 1},
                )
            self._state = self._read_state()
            if self._state["phase"] == phase:
                return
        raise TapLost(f"a click at {point[0]:.0f}, {point[1]:.0f} left the page in {self._state['phase']!r}")

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

    def _not_loaded(self, error: Exception) -> None:
        with suppress(self._error):
            self._page.context.close()  # its error page would interrupt the next one
        self._page = None
        raise RecipeError(
            f"the page does not load: {_first_line(error)}",
            where=self._address,
            fix=CHECK,
        ) from error


def _is_gone(error: Exception) -> bool:
    """The browser was closed, or Playwright's own process ended, which it reports with a bare Exception."""
    return any(words in str(error) for words in ("has been closed", "Connection closed"))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
