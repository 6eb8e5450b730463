"""Playing: a scripted model, and the game in real Chromium; prose, silence and a server that fails."""

import base64
from types import SimpleNamespace

import pytest

from recipes.chat_server import Completion
from recipes.errors import RecipeError
from recipes.rewards.loading import load_reward
from recipes.tasks.number_game import play as player
from recipes.tasks.number_game.collect import decoded, planned
from recipes.tasks.number_game.play import Agent, Server, play, read_result
from recipes.tasks.number_game.rules import Settings

SAMPLED = {"temperature": 0.6, "top_p": 0.95, "max_tokens": 128}
EPISODES = planned("test", 6, Settings(rounds=3, looks="plain", screens=((560, 1008),)), seed=0)


@pytest.fixture
def agent(monkeypatch):
    """An agent whose model says these answers, and the requests that it got; an answer may be an error."""

    def make(answers, **settings):
        script, requests = iter(answers), []

        def complete(messages, **sampling):
            requests.append({"content": messages[0]["content"], **sampling})
            if isinstance(answer := next(script), RecipeError):
                raise answer
            return Completion(answer, None, truncated=False, reasoning=False)

        monkeypatch.setattr(player, "ChatServer", lambda *of_server, **given: SimpleNamespace(complete=complete))
        score = load_reward("reward_functions/number_game.py").compute_score
        return Agent(Server("http://localhost/v1", "tiny", **settings), score), requests

    return make


def run(agent, folder, episodes=EPISODES):
    return play(episodes, agent, folder, 1, on_episode=lambda result: None)


def test_whole_episodes_in_chromium(chromium_path, agent, tmp_path):
    answers = [deal.answer for episode in EPISODES for deal in episode.rounds]
    oracle, requests = agent(f"I see three cards. Answer: {answer}" for answer in answers)
    (first, second), _ = run(oracle, tmp_path)
    assert [(each.score, each.right) for each in (first, second)] == [(130, 3)] * 2
    assert {name: requests[0][name] for name in SAMPLED} == SAMPLED
    picture, text = requests[0]["content"]
    data = base64.b64decode(picture["image_url"]["url"].removeprefix("data:image/png;base64,"))
    assert decoded(data).size == (560, 1008)
    assert "<image>" not in text["text"]
    folder = next(tmp_path.glob("episode_001_*"))
    assert (folder / "round_01.png").read_bytes() == data
    assert read_result(folder / "result.json") == first
    assert (run(oracle, tmp_path)[1], len(requests)) == (2, 6), "finished episodes are not played again"


def test_prose_and_silence_count_as_wrong_and_the_game_goes_on(chromium_path, agent, tmp_path):
    mute, requests = agent(["It depends.", "", "", "Who knows?", "Answer: 7", "Answer: 0", "", "", ""])
    (result,), _ = run(mute, tmp_path, EPISODES[:1])
    assert [(each.choice, each.reason) for each in result.rounds][::2] == [(None, "no_answer")] * 2
    assert result.rounds[1].responses == ["Who knows?", "Answer: 7", "Answer: 0"]
    assert all(each.tapped != each.answer for each in result.rounds if each.choice is None)
    assert len(requests) == 9
    greedy, requests = agent(["hm"], temperature=0.0)
    assert (greedy.decide(b"png"), len(requests)) == ((None, ["hm"], "no_answer"), 1)


def test_finished_episodes_survive_a_server_that_fails(chromium_path, agent, tmp_path):
    with pytest.raises(RecipeError, match="500"):
        run(agent([*["Answer: 0"] * 4, RecipeError("500", where="server")])[0], tmp_path)
    assert len(list(tmp_path.glob("*/result.json"))) == 1
    again, requests = agent(["Answer: 1"] * 3)
    results, resumed = run(again, tmp_path)
    assert (resumed, len(results), len(requests)) == (1, 2, 3)
