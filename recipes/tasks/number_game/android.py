"""The number game on Android phones over ADB: taps, and what followed read from the pixels."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.errors import RecipeError
from recipes.tasks.number_game.pixels import Box, BrokenPNG, decoded, find_button, find_cards, verdict
from recipes.tasks.number_game.rules import Appearance, Deal, query
from recipes.tasks.number_game.screens import Outcome, ScreenLost, TapLost

if TYPE_CHECKING:
    from PIL.Image import Image

WEB = Path(__file__).with_name("web")
PORT = 8931  # of the page on the device; here any free port
PAUSE = 0.1  # seconds between two looks at the screen


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


@cache
def serve_page() -> int:
    """Serve the page on 127.0.0.1 until the process ends; the port, the same at every call."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_QuietHandler, directory=str(WEB)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def find_devices(devices: str, *, host: str = "127.0.0.1", port: int = 5037) -> list[Any]:
    """Connected devices as adbutils objects: those of a list of serials with commas between, or `all`.

    Args:
        devices: `all`, or for instance `emulator-5554,192.168.0.7:5555`.
        host, port: of the ADB server.

    Raises:
        RecipeError: adbutils is not installed, no server answers, no device is connected, or one of those named.
    """
    try:
        import adbutils
    except ImportError as error:
        raise RecipeError("adbutils is not installed", where="--devices", fix="pip install adbutils") from error
    client = adbutils.AdbClient(host=host, port=port, socket_timeout=60)
    try:
        connected = {device.serial: device for device in client.device_list()}
    except (adbutils.AdbError, OSError, subprocess.SubprocessError) as error:
        fix = "start one: adb start-server"
        raise RecipeError(f"no ADB server answers: {error}", where=f"{host}:{port}", fix=fix) from error
    if devices == "all":
        if not connected:
            raise RecipeError("no device is connected", where="--devices all", fix="see `adb devices`")
        return list(connected.values())
    serials = [serial.strip() for serial in devices.split(",") if serial.strip()]
    missing = [serial for serial in serials if serial not in connected]
    if missing or not serials:
        raise RecipeError(
            f"not connected: {', '.join(missing) or 'no name given'} (connected: {', '.join(connected) or 'none'})",
            where="--devices",
            fix="adb connect HOST:PORT for a device in the network; see `adb devices`",
        )
    return [connected[serial] for serial in serials]


class AndroidScreen:
    """One device; see `screens.Screen`. Of an appearance it takes all but the size, which is the device's own."""

    def __init__(self, device: Any, *, address: str | None = None, seconds: float = 20.0) -> None:
        """Take a device.

        Args:
            device: from `find_devices`.
            address: of the page as the device reaches it. Without one this machine's own server is made reachable
                through `adb reverse`.
            seconds: to wait for the page; a tap has a quarter of it for its effect.
        """
        self.name = device.serial
        self._device = device
        self._address = address or f"http://127.0.0.1:{PORT}/index.html"
        self._reversed = address is None
        self._seconds = seconds
        self._theme = Appearance().theme
        self._cards: list[Box] = []

    def open(self, deals: list[Deal], appearance: Appearance) -> None:
        """Open the page in the device's browser and find the cards in the picture."""
        self._theme = appearance.theme
        address = f"{self._address}?{query(deals, appearance)}"
        with self._connection():
            if self._reversed:
                self._device.reverse(f"tcp:{PORT}", f"tcp:{serve_page()}")
            # Quoted for the device's shell, which would end the command at the first &.
            self._device.shell(f"am start -a android.intent.action.VIEW -d '{address}'")
        cards = self._wait_for(lambda picture: find_cards(picture, self._theme), self._seconds)
        if cards is None:
            raise RecipeError(
                f"{self.name} shows no three cards {self._seconds:g} s after the page was opened",
                where=address,
                fix="unlock it, close what lies over its browser, and check that it reaches --page_url",
            )
        self._cards = cards

    def screenshot(self) -> bytes:
        """The whole screen as PNG, Android's bars included."""
        with self._connection():
            data = self._device.shell("screencap -p", encoding=None, timeout=60)
        if data.startswith(b"\x89PNG\r\r\n"):
            data = data.replace(b"\r\n", b"\n")  # shells before Android 7 write every line feed so
        return data

    def choose(self, position: int) -> Outcome:
        """Tap a card's centre until the page colours it."""
        card = self._cards[position]
        colour = self._tap(card, lambda picture: verdict(picture, card, self._theme))
        if colour is None:
            raise TapLost(f"card {position} of {self.name} was tapped twice and kept its colour")
        return Outcome(colour, "pixels")

    def advance(self) -> None:
        """Tap the button until all cards have their ordinary face again, or are gone with the last round."""
        button = self._wait_for(lambda picture: find_button(picture, self._theme), self._seconds / 4)
        if button is None:
            raise TapLost(f"{self.name} shows no button to go on with")
        if not self._tap(button, self._no_card_is_coloured):
            raise TapLost(f"the button of {self.name} was tapped twice and nothing followed")

    def deal(self) -> None:
        """Return None: pixels alone do not tell it."""

    def score(self) -> None:
        """Return None: pixels alone do not tell it."""

    def close(self) -> None:
        """Leave the device as it is; only its way to this machine's server is closed."""
        if self._reversed:
            import adbutils

            with suppress(adbutils.AdbError, OSError):
                self._device.reverse_remove(f"tcp:{PORT}")

    def _no_card_is_coloured(self, picture: Image) -> bool | None:
        return None if any(verdict(picture, card, self._theme) for card in self._cards) else True

    def _tap(self, box: Box, effect: Callable[[Image], Any]) -> Any:
        """Tap until `effect` returns something, twice at most; what it returned."""
        for _ in range(2):
            x, y = box.centre
            with self._connection():
                self._device.shell(f"input tap {x} {y}")
            if (result := self._wait_for(effect, self._seconds / 4)) is not None:
                return result
        return None

    def _wait_for(self, effect: Callable[[Image], Any], seconds: float) -> Any:
        """Return the first result of `effect` that is not None; None after `seconds`. Skip broken pictures."""
        end = time.monotonic() + seconds
        while True:
            with suppress(BrokenPNG):
                if (result := effect(decoded(self.screenshot()))) is not None:
                    return result
            if time.monotonic() >= end:
                return None
            time.sleep(PAUSE)

    @contextmanager
    def _connection(self) -> Iterator[None]:
        import adbutils

        try:
            yield
        except (adbutils.AdbError, OSError, EOFError, subprocess.SubprocessError) as error:
            raise ScreenLost(f"{self.name}: {error}") from error
