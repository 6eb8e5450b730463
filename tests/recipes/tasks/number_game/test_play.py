"""Playing: a scripted server, and the game in real Chromium; prose, silence and refusals."""

from __future__ import annotations

import base64
import json

import pytest

from recipes.errors import RecipeError
from recipes.tasks.number_game.android import openers
from recipes.tasks.number_game.collect import planned
from recipes.tasks.number_game.play import Agent, Server, play, summarise
from recipes.tasks.number_game.rules import Settings
from recipes.tasks.number_game.screens import decoded

CHROMIUM = openers(None, 1, page_url=None, adb_host="", adb_port=0)
EPISODES = planned("test", 6, Settings(rounds=3, looks="plain", screens=((560, 1008),)), seed=0)


def agent_of(model_server, answers, score, **settings):
    server = model_server(answers)
    return Agent(Server(server.api_base, "tiny", retries=0, **settings), score), server


def oracle(rounds):
    """Answers that are right for these rounds, one after the other."""
    answers = iter([deal.answer for deal in rounds])
    return lambda request: f"I see three cards. Answer: {next(answers)}"


def run(agent, folder, episodes=EPISODES):
    results = []
    played = play(episodes, agent, CHROMIUM, folder, on_episode=results.append)
    return played, summarise(played), results


def test_whole_episodes_in_chromium(chromium_path, model_server, score, tmp_path):
    rounds = [deal for episode in EPISODES for deal in episode.deals]
    agent, server = agent_of(model_server, oracle(rounds), score)
    _, summary, results = run(agent, tmp_path)
    assert summary["accuracy"] == {"value": 1.0, "low": pytest.approx(0.61, abs=0.01), "high": 1.0, "method": "Wilson"}
    assert summary["perfect"]["value"] == 1.0
    assert summary["score"]["value"] == 130
    assert set(summary["accuracy_by_light"]) == {deal.light for deal in rounds}
    request = server.requests[0]
    assert (request["temperature"], request["top_p"], request["max_tokens"]) == (0.6, 0.95, 128)
    picture, text = request["messages"][0]["content"]
    data = base64.b64decode(picture["image_url"]["url"].removeprefix("data:image/png;base64,"))
    assert decoded(data).size == (560, 1008)
    assert "<image>" not in text["text"]
    folder = next(tmp_path.glob("episode_001_*"))
    assert (folder / "round_01.png").read_bytes() == data
    result = json.loads((folder / "result.json").read_text())
    assert [each["effect_seen_in"] for each in result["rounds"]] == ["page"] * 3
    assert (result["status"], result["score"], result["right"]) == ("finished", 130, 3)
    assert len(results) == 2
    again, _, _ = run(agent, tmp_path)
    assert again.found == 2
    assert len(server.requests) == 6, "finished episodes are not played again"


def test_prose_and_silence_count_as_wrong_and_the_game_goes_on(chromium_path, model_server, score, tmp_path):
    script = iter(["It depends.", "", None, "Who knows?", "Answer: 7", "Answer: 0", "", "", ""])
    agent, server = agent_of(model_server, lambda request: next(script), score)
    _, summary, results = run(agent, tmp_path, EPISODES[:1])
    assert summary["unanswered"] == {"no_answer": 2}
    assert [each["choice"] for each in results[0]["rounds"]] == [None, 0, None]
    assert results[0]["rounds"][1]["responses"] == ["Who knows?", "Answer: 7", "Answer: 0"]
    assert all(each["tapped"] != each["answer"] for each in results[0]["rounds"] if each["choice"] is None)
    assert len(server.requests) == 9


def test_one_ask_where_the_temperature_is_0(model_server, score):
    agent, server = agent_of(model_server, lambda request: "hm", score, temperature=0.0)
    decision = agent.decide(b"png")
    assert (decision.answer, decision.reason, len(server.requests)) == (None, "no_answer", 1)


def test_finished_episodes_survive_a_server_that_fails(chromium_path, model_server, score, tmp_path):
    answers = iter(["Answer: 0"] * 4 + [500] * 9)
    agent, _ = agent_of(model_server, lambda request: next(answers), score)
    with pytest.raises(RecipeError, match="refused with status 500: .*scripted"):
        run(agent, tmp_path)
    assert len(list(tmp_path.glob("*/result.json"))) == 1
    agent, server = agent_of(model_server, lambda request: "Answer: 1", score)
    played, summary, _ = run(agent, tmp_path)
    assert (played.found, summary["episodes"], len(server.requests)) == (1, 2, 3)


def test_a_reply_that_is_no_chat_completion_is_no_answer_of_the_model(model_server, score):
    agent, _ = agent_of(model_server, lambda request: {"status": "fine"}, score)
    with pytest.raises(RecipeError, match="not a chat completion") as raised:
        agent.decide(b"png")
    assert "--api_base" in raised.value.fix


def test_a_server_that_is_not_there(score):
    with pytest.raises(RecipeError, match="did not answer"):
        Agent(Server("http://127.0.0.1:9/v1", "tiny", retries=0), score)


def test_a_model_that_the_server_does_not_have(model_server, score):
    with pytest.raises(RecipeError, match="no model other, but tiny"):
        Agent(Server(model_server(lambda request: "").api_base, "other", retries=0), score)
