"""The number game on Android phones over ADB, and the choice of devices."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from recipes.errors import RecipeError
from recipes.tasks.number_game.rules import Deal, Look, query
from recipes.tasks.number_game.screens import (
    PORT,
    Box,
    BrokenPNG,
    Outcome,
    Screen,
    ScreenLost,
    TapLost,
    decoded,
    find_button,
    find_cards,
    verdict,
)

if TYPE_CHECKING:
    from PIL.Image import Image

PAUSE = 0.1  # seconds between two looks at the screen


def find_devices(wanted: str, *, host: str = "127.0.0.1", port: int = 5037) -> list[Any]:
    """Connected devices as adbutils objects: those of a list of serials with commas between, or `all`.

    Args:
        wanted: `all`, or for instance `emulator-5554,192.168.0.7:5555`.
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
        raise RecipeError(
            f"no ADB server answers: {error}", where=f"{host}:{port}", fix="start one: adb start-server"
        ) from error
    if wanted == "all":
        if not connected:
            raise RecipeError("no device is connected", where="--devices all", fix="see `adb devices`")
        return list(connected.values())
    serials = [serial.strip() for serial in wanted.split(",") if serial.strip()]
    missing = [serial for serial in serials if serial not in connected]
    if missing or not serials:
        have = ", ".join(connected) or "none"
        raise RecipeError(
            f"not connected: {', '.join(missing) or 'no name given'} (connected: {have})",
            where="--devices",
            fix="adb connect HOST:PORT for a device in the network; see `adb devices`",
        )
    return [connected[serial] for serial in serials]


class AndroidScreen:
    """One device; see `screens.Screen`. Of a look it takes everything but the size, which is the device's own."""

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
        self._look = Look()
        self._cards: list[Box] = []

    def open(self, deals: list[Deal], look: Look) -> None:
        """Open the page in the device's browser and find the cards in the picture."""
        self._look = look
        address = f"{self._address}?{query(deals, look)}"
        with self._talking():
            if self._reversed:
                from recipes.tasks.number_game.screens import serve_page

                self._device.reverse(f"tcp:{PORT}", f"tcp:{serve_page()}")
            # Quoted for the device's shell, which would end the command at the first &.
            self._device.shell(f"am start -a android.intent.action.VIEW -d '{address}'")
        cards = self._wait(lambda picture: find_cards(picture, look.theme), self._seconds)
        if cards is None:
            raise RecipeError(
                f"{self.name} shows no three cards {self._seconds:g} s after the page was opened",
                where=address,
                fix="unlock it, close what lies over its browser, and check that it reaches --page_url",
            )
        self._cards = cards

    def screenshot(self) -> bytes:
        """The whole screen as PNG, Android's bars included."""
        with self._talking():
            data = self._device.shell("screencap -p", encoding=None, timeout=60)
        if data.startswith(b"\x89PNG\r\r\n"):
            data = data.replace(b"\r\n", b"\n")  # shells before Android 7 write every line feed so
        return data

    def choose(self, position: int) -> Outcome:
        """Tap a card's centre until the page colours it."""
        seen = self._tap(
            self._cards[position], lambda picture: verdict(picture, self._cards[position], self._look.theme)
        )
        if seen is None:
            raise TapLost(f"card {position} of {self.name} was tapped twice and kept its colour")
        return Outcome(seen, "pixels")

    def advance(self) -> None:
        """Tap the button until all cards have their ordinary face again, or are gone with the last round."""
        button = self._wait(lambda picture: find_button(picture, self._look.theme), self._seconds / 4)
        if button is None:
            raise TapLost(f"{self.name} shows no button to go on with")
        if self._tap(button, self._moved_on) is None:
            raise TapLost(f"the button of {self.name} was tapped twice and nothing followed")

    def deal(self) -> Deal | None:
        """Unknown: pixels do not say."""
        return None

    def score(self) -> int | None:
        """Unknown: pixels do not say."""
        return None

    def close(self) -> None:
        """Leave the device as it is; only its way to this machine's server is closed."""
        if self._reversed:
            import adbutils

            with suppress(adbutils.AdbError, OSError):
                self._device.reverse_remove(f"tcp:{PORT}")

    def _moved_on(self, picture: Image) -> bool | None:
        chosen = [verdict(picture, card, self._look.theme) for card in self._cards]
        return None if any(chosen) else True

    def _tap(self, box: Box, effect: Callable[[Image], Any]) -> Any:
        """Tap until `effect` sees something, twice at most; what it saw."""
        for _ in range(2):
            x, y = box.centre
            with self._talking():
                self._device.shell(f"input tap {x} {y}")
            if (seen := self._wait(effect, self._seconds / 4)) is not None:
                return seen
        return None

    def _wait(self, look: Callable[[Image], Any], seconds: float) -> Any:
        """What `look` sees as soon as that is not None; None after so many seconds. A broken picture shows nothing."""
        end = time.monotonic() + seconds
        while True:
            with suppress(BrokenPNG):
                if (seen := look(decoded(self.screenshot()))) is not None:
                    return seen
            if time.monotonic() >= end:
                return None
            time.sleep(PAUSE)

    @contextmanager
    def _talking(self) -> Iterator[None]:
        import adbutils

        try:
            yield
        except (adbutils.AdbError, OSError, EOFError, subprocess.SubprocessError) as error:
            raise ScreenLost(f"{self.name}: {error}") from error


def openers(
    devices: str | None, workers: int, *, page_url: str | None, adb_host: str, adb_port: int
) -> Callable[[int], list[Callable[[], Screen]]]:
    """For `collect` and `play`: a function that gives openers of screens, at most as many as there are jobs.

    Args:
        devices: None for Chromium; for Android serials with commas between, or `all`.
        workers: Chromium windows at once.
        page_url: of the page, None for the one in this package.
        adb_host, adb_port: of the ADB server.
    """

    def chromium(jobs: int) -> list[Callable[[], Screen]]:
        from recipes.tasks.number_game.screens import ChromiumScreen, find_chromium

        find_chromium()
        return [partial(ChromiumScreen, f"chromium-{number}", address=page_url) for number in range(min(workers, jobs))]

    def android(jobs: int) -> list[Callable[[], Screen]]:

        found = find_devices(devices or "all", host=adb_host, port=adb_port)
        return [partial(AndroidScreen, device, address=page_url) for device in found[:jobs]]

    return chromium if devices is None else android
