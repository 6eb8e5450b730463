"""Screens to play on: windows of Chromium, or Android devices."""

from __future__ import annotations

from functools import partial

from recipes.tasks.number_game.android import AndroidScreen, find_devices
from recipes.tasks.number_game.chromium import ChromiumScreen, find_chromium
from recipes.tasks.number_game.screens import Opener, Openers


def openers(devices: str | None, workers: int, *, page_url: str | None, adb_host: str, adb_port: int) -> Openers:
    """Return a function that gives openers of screens, at most as many as there are jobs, for `collect` and `play`.

    Args:
        devices: None for Chromium; for Android serials with commas between, or `all`.
        workers: Chromium windows at once.
        page_url: of the page, None for the one in this package.
        adb_host, adb_port: of the ADB server.
    """

    def chromium(jobs: int) -> list[Opener]:
        find_chromium()
        return [partial(ChromiumScreen, f"chromium-{number}", address=page_url) for number in range(min(workers, jobs))]

    def android(jobs: int) -> list[Opener]:
        connected = find_devices(devices or "all", host=adb_host, port=adb_port)
        return [partial(AndroidScreen, device, address=page_url) for device in connected[:jobs]]

    return chromium if devices is None else android
