"""Android over ADB, on phones that are drawn: taps, pixels, phones that drop out."""

from __future__ import annotations

import io
import re
import urllib.request
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest
from PIL import Image, ImageDraw

from recipes.errors import RecipeError
from recipes.tasks.number_game.android import AndroidScreen, find_devices
from recipes.tasks.number_game.collect import Journal, collect, planned
from recipes.tasks.number_game.openers import openers
from recipes.tasks.number_game.pixels import colours, decoded
from recipes.tasks.number_game.rules import Appearance, Settings, parse_deal
from recipes.tasks.number_game.screens import ScreenLost, TapLost

adbutils = pytest.importorskip("adbutils", reason="adbutils is not installed")
EPISODES = planned("test", 9, Settings(rounds=3), seed=0)


class DrawnPhone:
    """adbutils' device with the game drawn with Pillow in 360 x 780 pixels.

    Args:
        drops_after: shell commands until it is gone; `deaf`: taps that it ignores.
        cut: which screenshot is cut short (0-based).
    """

    CARDS = ((18, 330, 114, 458), (129, 330, 225, 458), (240, 330, 336, 458))
    BUTTON = (100, 640, 260, 690)

    def __init__(self, serial, *, drops_after=None, deaf=0, cut=None):
        self.serial, self.alive, self.taps, self.ways, self.screenshots = serial, True, 0, {}, 0
        self._drops_after, self._deaf, self._cut = drops_after, deaf, cut
        self.deals, self.round, self.choice = [], 0, None

    def reverse(self, remote, local):
        self.ways[remote] = local

    def reverse_remove(self, remote):
        del self.ways[remote]

    def shell(self, command, **options):
        if self._drops_after is not None:
            self._drops_after -= 1
            self.alive = self._drops_after >= 0
        if not self.alive:
            raise adbutils.AdbError(f"device '{self.serial}' not found")
        if command == "screencap -p":
            out = io.BytesIO()
            self.draw().save(out, "PNG")
            self.screenshots += 1
            data = out.getvalue()
            return data[: len(data) // 2] if self._cut == self.screenshots - 1 else data
        if tap := re.fullmatch(r"input tap (\d+) (\d+)", command):
            self.taps += 1
            if self.taps > self._deaf:
                self.tap(int(tap[1]), int(tap[2]))
        else:
            address = re.fullmatch(r"am start -a android\.intent\.action\.VIEW -d '([^']+)'", command)[1]
            port = urlsplit(address).port
            address = address.replace(f":{port}/", f":{self.ways[f'tcp:{port}'].removeprefix('tcp:')}/")
            with urllib.request.urlopen(address, timeout=30) as answer:
                assert b"game.js" in answer.read()
            options = parse_qs(urlsplit(address).query)
            self.theme, self.round, self.choice = options["theme"][0], 0, None
            self.deals = [parse_deal(code) for code in options["deal"][0].split(",")]
        return ""

    def tap(self, x, y):
        def inside(box):
            return box[0] <= x < box[2] and box[1] <= y < box[3]

        if self.choice is None:
            self.choice = next((position for position, box in enumerate(self.CARDS) if inside(box)), None)
        elif inside(self.BUTTON):
            self.round, self.choice = self.round + 1, None

    def draw(self):
        picture = Image.new("RGB", (360, 780), (255, 255, 255))
        if self.round < len(self.deals):
            pen, shades, deal = ImageDraw.Draw(picture), colours(self.theme), self.deals[self.round]
            pen.rectangle((0, 60, 360, 780), fill=(128, 140, 150))  # Android's own bar is above
            for position, (left, top, right, bottom) in enumerate(self.CARDS):
                chosen = shades.right if position == deal.answer else shades.wrong
                fill = chosen if self.choice == position else shades.face
                pen.rounded_rectangle((left, top, right - 1, bottom - 1), 12, fill=fill)
                pen.text((left + 40, top + 50), str(deal.digits[position]), fill=(0, 0, 0))
            if self.choice is not None:
                left, top, right, bottom = self.BUTTON
                pen.rounded_rectangle((left, top, right - 1, bottom - 1), 10, fill=shades.button)
        return picture


@pytest.fixture
def connect(monkeypatch):
    """Connect phones; screens look more often than at real ones."""
    monkeypatch.setattr("recipes.tasks.number_game.android.PAUSE", 0.01)

    def start(*phones):
        client = SimpleNamespace(device_list=lambda: list(phones))
        monkeypatch.setattr(adbutils, "AdbClient", lambda **options: client)

    return start


def collected(folder):
    journal, screens = Journal(folder), openers("all", 1, page_url=None, adb_host="", adb_port=0)
    tally = collect(EPISODES, journal, screens, source="adb", on_episode=lambda rounds: None)
    return tally, list(journal.rounds(EPISODES))


def test_an_episode_is_played_by_taps_and_pixels_and_a_lost_tap_is_repeated(connect, deals):
    connect(phone := DrawnPhone("phone", deaf=1))
    android = AndroidScreen(*find_devices("all"), seconds=4.0)
    android.open(deals, Appearance(theme="night"))
    outcomes = []
    for deal in deals:
        outcomes.append(android.choose(deal.answer if deal is not deals[1] else 0))
        android.advance()
    assert outcomes == [("right", "pixels"), ("wrong", "pixels"), ("right", "pixels")]
    assert (phone.taps, len(phone.ways)) == (6 + 1, 1)
    android.close()
    assert not phone.ways


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ({"deaf": 99}, TapLost, "card 1 of phone was tapped twice"),
        ({"drops_after": 2}, ScreenLost, "device 'phone' not found"),
    ],
)
def test_a_phone_that_does_not_do_as_it_should(connect, deals, fault, error, message):
    connect(DrawnPhone("phone", **fault))
    android = AndroidScreen(*find_devices("all"), seconds=0.4)

    def play():
        android.open(deals, Appearance())
        android.choose(1)

    with pytest.raises(error, match=message):
        play()


def test_phones_share_the_episodes_and_finished_ones_survive_the_last_phone(connect, tmp_path):
    connect(DrawnPhone("a", drops_after=9), DrawnPhone("b", cut=2))
    tally, rounds = collected(tmp_path / "shared")
    assert (tally.played, tally.rounds, len(rounds)) == (3, 9, 9)
    assert [reason.startswith("a dropped out of episode test-") for reason in tally.dropped] == [True]
    for each in rounds:
        width, height = decoded(each.image).size
        assert width % 28 == height % 28 == 0
    connect(DrawnPhone("a", drops_after=40))
    with pytest.raises(RecipeError, match="of 3 episodes are not played") as caught:
        collected(tmp_path)
    assert "a: device 'a' not found" in caught.value.where
    kept = len(list(tmp_path.glob("test-*")))
    assert 1 <= kept < 3
    connect(DrawnPhone("b"))
    tally, rounds = collected(tmp_path)
    assert (tally.resumed, tally.played, len(rounds)) == (kept, 3 - kept, 9)


def test_devices_that_are_not_there(connect, monkeypatch):
    monkeypatch.setenv("ADBUTILS_ADB_PATH", "/does/not/exist/adb")
    with pytest.raises(RecipeError, match="no ADB server answers"):
        find_devices("all", port=1)
    connect()
    with pytest.raises(RecipeError, match="no device is connected"):
        find_devices("all")
    connect(DrawnPhone("a"))
    with pytest.raises(RecipeError, match=r"not connected: c \(connected: a\)"):
        find_devices("a,c")
