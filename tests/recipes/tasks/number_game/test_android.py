"""Android over ADB, against a fake server that speaks the protocol: taps, pixels, phones that drop out."""

from __future__ import annotations

import json

import pytest

from recipes.errors import RecipeError
from recipes.tasks.number_game.android import AndroidScreen, find_devices
from recipes.tasks.number_game.collect import Journal, collect, planned
from recipes.tasks.number_game.pixels import decoded
from recipes.tasks.number_game.play import Agent, Server, play
from recipes.tasks.number_game.rules import Look, Settings
from recipes.tasks.number_game.screens import ScreenLost, TapLost, openers

pytest.importorskip("adbutils", reason="adbutils is not installed")
EPISODES = planned("test", 9, Settings(rounds=3), seed=0)


@pytest.fixture
def screen(adb, phone):
    """A screen on one phone with the given faults."""

    def start(seconds=10.0, **faults):
        server = adb(phone("phone", **faults))
        (device,) = find_devices("all", port=server.port)
        return AndroidScreen(device, seconds=seconds), server

    return start


def screens_of(server, devices="all"):
    return openers(devices, 1, page_url=None, adb_host="127.0.0.1", adb_port=server.port)


def collected(server, folder):
    journal = Journal(folder)
    tally = collect(EPISODES, journal, screens_of(server), source="adb", on_episode=lambda rounds: None)
    return tally, list(journal.rounds(EPISODES))


def test_an_episode_is_played_by_taps_and_pixels_and_a_lost_tap_is_repeated(screen, deals):
    android, server = screen(deaf=1, seconds=4.0)
    android.open(deals, Look(theme="night"))
    outcomes = []
    for deal in deals:
        outcomes.append(android.choose(deal.answer if deal is not deals[1] else 0))
        android.advance()
    assert outcomes == [("right", "pixels"), ("wrong", "pixels"), ("right", "pixels")]
    android.close()
    assert any(command.startswith("reverse:forward:tcp:8931;tcp:") for command in server.commands)
    assert server.commands[-1] == "reverse:killforward:tcp:8931"
    assert sum(command.startswith("shell:input tap") for command in server.commands) == 6 + 1


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ({"deaf": 99, "seconds": 0.4}, TapLost, "card 1 of phone was tapped twice"),
        ({"loads": False, "seconds": 0.2}, RecipeError, "phone shows no three cards"),
        ({"drops_after": 2}, ScreenLost, "device 'phone' not found"),
    ],
)
def test_a_phone_that_does_not_do_as_it_should(screen, deals, fault, error, message):
    android, _ = screen(**fault)

    def play():
        android.open(deals, Look())
        android.choose(1)

    with pytest.raises(error, match=message):
        play()


def test_line_feeds_of_old_shells_are_mended(screen):
    assert decoded(screen(crlf=True)[0].screenshot()).size == (360, 780)


def test_several_phones_share_the_episodes_and_one_drops_out(adb, phone, tmp_path):
    server = adb(phone("a", drops_after=20), phone("b", cut=2))
    tally, rounds = collected(server, tmp_path)
    assert (tally.played, tally.rounds, len(rounds)) == (3, 9, 9)
    assert all(each.games >= 1 for each in server.phones.values())
    assert [reason.startswith("a dropped out of episode test-") for reason in tally.dropped] == [True]
    assert all("a PNG of" in reason for reason in tally.retried)
    for each in rounds:
        width, height = decoded(each.image).size
        assert width % 28 == height % 28 == 0


def test_finished_episodes_survive_the_last_phone(adb, phone, tmp_path):
    with pytest.raises(RecipeError, match="of 3 episodes are not played") as caught:
        collected(adb(phone("a", drops_after=40)), tmp_path)
    assert "a: device 'a' not found" in caught.value.where
    kept = len(list(tmp_path.glob("test-*")))
    assert 1 <= kept < 3
    tally, rounds = collected(adb(phone("b")), tmp_path)
    assert (tally.resumed, tally.played, len(rounds)) == (kept, 3 - kept, 9)


def test_a_model_plays_on_several_phones(adb, phone, model_server, score, tmp_path):
    server = adb(phone("a", drops_after=9), phone("b"))
    agent = Agent(Server(model_server(lambda request: "Answer: 1").api_base, "tiny"), score)
    played = play(EPISODES, agent, screens_of(server, "a,b"), tmp_path, on_episode=lambda result: None)
    assert ([result["status"] for result in played.results], len(played.dropped)) == (["finished"] * 3, 1)
    assert sum(result["right"] for result in played.results) == 3
    result = json.loads(next(tmp_path.glob("*/result.json")).read_text())
    assert {each["effect_seen_in"] for each in result["rounds"]} == {"pixels"}


def test_devices_that_are_not_there(adb, phone, monkeypatch):
    port = adb(phone("a")).port
    for serials, message in (("c", r"not connected: c \(connected: a\)"), ("a,c", "connected: c"), (",", "no name")):
        with pytest.raises(RecipeError, match=message):
            find_devices(serials, port=port)
    with pytest.raises(RecipeError, match="no device is connected"):
        find_devices("all", port=adb().port)
    monkeypatch.setenv("ADBUTILS_ADB_PATH", "/does/not/exist/adb")
    with pytest.raises(RecipeError, match="no ADB server answers"):
        find_devices("all", port=1)
