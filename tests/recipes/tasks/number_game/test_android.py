"""Android over ADB, against a fake server that speaks the protocol: taps, pixels, phones that drop out."""

from __future__ import annotations

import json

import pytest

from recipes.errors import RecipeError
from recipes.tasks.number_game.android import AndroidScreen, find_devices, openers
from recipes.tasks.number_game.collect import Journal, collect, planned
from recipes.tasks.number_game.play import Agent, Server, play, summarise
from recipes.tasks.number_game.rules import Look, Settings
from recipes.tasks.number_game.screens import ScreenLost, TapLost, decoded

pytest.importorskip("adbutils", reason="adbutils is not installed")
SETTINGS = Settings(rounds=3)


@pytest.fixture
def screen(adb, phones):
    """A screen on one phone with the given faults."""

    def start(**faults):
        server = adb(lambda: [phones.DrawnPhone("phone", **faults)])
        (device,) = find_devices("all", port=server.port)
        return AndroidScreen(device, seconds=2.0), server

    return start


def collected(server, folder, count=9, devices="all"):
    make = openers(devices, 1, page_url=None, adb_host="127.0.0.1", adb_port=server.port)
    episodes = planned("test", count, SETTINGS, seed=0)
    journal = Journal(folder)
    rounds = []
    tally = collect(episodes, journal, make, source="adb", on_episode=rounds.append)
    return tally, list(journal.rounds(episodes)), sum(rounds)


def test_an_episode_is_played_by_taps_and_pixels(screen, deals):
    android, server = screen()
    android.open(deals, Look(theme="night"))
    verdicts = []
    for deal in deals:
        verdicts.append(android.choose(deal.answer if deal is not deals[1] else 0))
        android.advance()
    assert [outcome.verdict for outcome in verdicts] == ["right", "wrong", "right"]
    assert {outcome.seen for outcome in verdicts} == {"pixels"}
    android.close()
    assert any(command.startswith("reverse:forward:tcp:8931;tcp:") for command in server.commands)
    assert server.commands[-1] == "reverse:killforward:tcp:8931"
    assert len([command for command in server.commands if command.startswith("shell:input tap")]) == 6


def test_a_lost_tap_is_repeated_once(screen, deals):
    android, server = screen(deaf=1)
    android.open(deals, Look())
    assert android.choose(0).verdict == "wrong"
    assert len([command for command in server.commands if "input tap" in command]) == 2


def test_a_tap_that_does_nothing_is_said(screen, deals):
    android, _ = screen(deaf=99)
    android.open(deals, Look())
    with pytest.raises(TapLost, match="card 1 of phone was tapped twice"):
        android.choose(1)


def test_line_feeds_of_old_shells_are_mended(screen):
    android, _ = screen(crlf=True)
    assert decoded(android.screenshot()).size == (360, 780)


def test_a_page_that_does_not_come(screen, deals):
    android, _ = screen(loads=False)
    android._seconds = 0.2
    with pytest.raises(RecipeError, match="phone shows no three cards"):
        android.open(deals, Look())


def test_a_phone_that_drops_out(screen, deals):
    android, _ = screen(drops_after=2)
    android.open(deals, Look())
    with pytest.raises(ScreenLost, match="device 'phone' not found"):
        android.choose(0)


def test_several_phones_share_the_episodes(adb, phones, tmp_path):
    server = adb(lambda: [phones.DrawnPhone("a"), phones.DrawnPhone("b")])
    tally, rounds, reported = collected(server, tmp_path)
    assert (tally.played, tally.rounds, reported) == (3, 9, 9)
    assert len(rounds) == 9
    assert all(phone.games >= 1 for phone in server.phones.values())
    for each in rounds:
        width, height = decoded(each.image).size
        assert width % 28 == height % 28 == 0


def test_what_a_dropped_phone_had_begun_is_played_by_another(adb, phones, tmp_path):
    server = adb(lambda: [phones.DrawnPhone("a", drops_after=7), phones.DrawnPhone("b")])
    tally, rounds, _ = collected(server, tmp_path)
    assert len(rounds) == 9
    assert len(tally.dropped) == 1
    assert tally.dropped[0].startswith("a dropped out of episode test-")


def test_finished_episodes_survive_the_last_phone(adb, phones, tmp_path):
    server = adb(lambda: [phones.DrawnPhone("a", drops_after=40)])
    with pytest.raises(RecipeError, match="of 3 episodes are not played") as caught:
        collected(server, tmp_path)
    assert "a: device 'a' not found" in caught.value.where
    kept = len(list(tmp_path.glob("test-*")))
    assert 1 <= kept < 3
    server = adb(lambda: [phones.DrawnPhone("b")])
    tally, rounds, _ = collected(server, tmp_path)
    assert (tally.found, tally.played) == (kept, 3 - kept)
    assert len(rounds) == 9


def test_a_broken_screenshot_begins_the_episode_again(adb, phones, tmp_path, monkeypatch):
    whole, calls = AndroidScreen.screenshot, iter(range(1000))

    def screenshot(screen):
        data = whole(screen)
        return data[: len(data) // 2] if next(calls) == 1 else data

    monkeypatch.setattr(AndroidScreen, "screenshot", screenshot)
    tally, rounds, _ = collected(adb(lambda: [phones.DrawnPhone("a")]), tmp_path, count=3)
    assert len(rounds) == 3
    assert len(tally.retried) == 1
    assert "a PNG of" in tally.retried[0]


def test_a_model_plays_on_several_phones_and_one_drops_out(adb, phones, model_server, score, tmp_path):
    server = adb(lambda: [phones.DrawnPhone("a", drops_after=9), phones.DrawnPhone("b")])
    models = model_server(lambda request: "Answer: 1")
    agent = Agent(Server(models.api_base, "tiny"), score)
    make = openers("a,b", 1, page_url=None, adb_host="127.0.0.1", adb_port=server.port)
    episodes = planned("test", 9, SETTINGS, seed=0)
    played = play(episodes, agent, make, tmp_path, on_episode=lambda result: None)
    summary = summarise(played)
    assert (summary["episodes"], summary["rounds"]) == (3, 9)
    assert len(summary["dropped_out"]) == 1
    assert not summary["not_played"]
    assert summary["accuracy"]["value"] == pytest.approx(3 / 9)
    result = json.loads(next(tmp_path.glob("*/result.json")).read_text())
    assert {each["effect_seen_in"] for each in result["rounds"]} == {"pixels"}


def test_the_real_page_on_a_phone(adb, phones, chromium_path, tmp_path):
    def launch():
        from playwright.sync_api import sync_playwright

        engine = sync_playwright().start()
        return engine, engine.chromium.launch(executable_path=chromium_path, args=["--no-sandbox"])

    server = adb(lambda: [phones.RealPhone("real", launch)])
    tally, rounds, _ = collected(server, tmp_path, count=3)
    assert tally.retried == []
    assert len(rounds) == 3
    assert decoded(rounds[0].image).size == (504, 1148)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [("c", r"not connected: c \(connected: a\)"), ("a,c", "not connected: c"), (",", "not connected")],
)
def test_devices_that_are_not_connected(adb, phones, wanted, message):
    server = adb(lambda: [phones.DrawnPhone("a")])
    with pytest.raises(RecipeError, match=message):
        find_devices(wanted, port=server.port)


def test_no_device_and_no_server(adb, monkeypatch):
    with pytest.raises(RecipeError, match="no device is connected"):
        find_devices("all", port=adb(list).port)
    monkeypatch.setenv("ADBUTILS_ADB_PATH", "/does/not/exist/adb")
    with pytest.raises(RecipeError, match="no ADB server answers"):
        find_devices("all", port=1)
