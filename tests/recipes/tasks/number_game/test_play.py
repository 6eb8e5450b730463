"""Playing: a scripted server, and the game in real Chromium; prose, silence and refusals."""

from __future__ import annotations

import base64

import pytest

from recipes.errors import RecipeError
from recipes.tasks.number_game.chromium import windows
from recipes.tasks.number_game.collect import planned
from recipes.tasks.number_game.pixels import decoded
from recipes.tasks.number_game.play import Agent, Server, play, read_result
from recipes.tasks.number_game.rules import Settings

EPISODES = planned("test", 6, Settings(rounds=3, looks="plain", screens=((560, 1008),)), seed=0)


@pytest.fixture
def agent(model_server, score):
    """An agent of a server with these answers, and the server."""

    def make(answers, **settings):
        server = model_server(answers)
        return Agent(Server(server.api_base, "tiny", retries=0, **settings), score), server

    return make


def run(agent, folder, episodes=EPISODES):
    return play(episodes, agent, lambda: windows(1), folder, on_episode=lambda result: None)


def test_whole_episodes_in_chromium(chromium_path, agent, tmp_path):
    answers = iter([deal.answer for episode in EPISODES for deal in episode.deals])
    oracle, server = agent(lambda request: f"I see three cards. Answer: {next(answers)}")
    (first, second), _ = run(oracle, tmp_path)
    assert [(each.score, each.right) for each in (first, second)] == [(130, 3)] * 2
    request = server.requests[0]
    assert (request["temperature"], request["top_p"], request["max_tokens"]) == (0.6, 0.95, 128)
    picture, text = request["messages"][0]["content"]
    data = base64.b64decode(picture["image_url"]["url"].removeprefix("data:image/png;base64,"))
    assert decoded(data).size == (560, 1008)
    assert "<image>" not in text["text"]
    folder = next(tmp_path.glob("episode_001_*"))
    assert (folder / "round_01.png").read_bytes() == data
    assert read_result(folder / "result.json") == first
    assert (run(oracle, tmp_path)[1], len(server.requests)) == (2, 6), "finished episodes are not played again"


def test_prose_and_silence_count_as_wrong_and_the_game_goes_on(chromium_path, agent, tmp_path):
    script = iter(["It depends.", "", "", "Who knows?", "Answer: 7", "Answer: 0", "", "", ""])
    mute, server = agent(lambda request: next(script))
    (result,), _ = run(mute, tmp_path, EPISODES[:1])
    assert [(each.choice, each.reason) for each in result.rounds][::2] == [(None, "no_answer")] * 2
    assert result.rounds[1].responses == ["Who knows?", "Answer: 7", "Answer: 0"]
    assert all(each.tapped != each.answer for each in result.rounds if each.choice is None)
    assert len(server.requests) == 9
    greedy, server = agent(lambda request: "hm", temperature=0.0)
    assert (greedy.decide(b"png"), len(server.requests)) == ((None, ["hm"], "no_answer"), 1)


def test_finished_episodes_survive_a_server_that_fails(chromium_path, agent, tmp_path):
    answers = iter(["Answer: 0"] * 4 + [500] * 9)
    with pytest.raises(RecipeError, match="500"):
        run(agent(lambda request: next(answers))[0], tmp_path)
    assert len(list(tmp_path.glob("*/result.json"))) == 1
    again, server = agent(lambda request: "Answer: 1")
    results, resumed = run(again, tmp_path)
    assert (resumed, len(results), len(server.requests)) == (1, 2, 3)


def test_servers_that_cannot_be_used_are_named(model_server, score):
    with pytest.raises(RecipeError, match="127.0.0.1:9"):
        Agent(Server("http://127.0.0.1:9/v1", "tiny", retries=0), score)
    with pytest.raises(RecipeError, match="other"):
        Agent(Server(model_server(lambda request: "").api_base, "other", retries=0), score)
