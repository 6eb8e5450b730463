"""The playing script: which episodes it plays, and what it says where it cannot."""

from __future__ import annotations

import pytest

from recipes.tasks.number_game.play import Played, summarise
from recipes.tasks.number_game.rules import cells, drawn


@pytest.fixture(scope="module")
def call(script):
    return script("play_number_game")


def test_episodes_are_of_held_out_deals_or_of_the_pages_own(call):
    script = call.module
    held_out = {deal for deals in cells("test").values() for deal in deals}
    episodes = script.chosen_episodes(3, 4, 5, "held_out", "plain", "en")
    assert [len(each.deals) for each in episodes] == [4, 4, 4]
    assert {deal for each in episodes for deal in each.deals} <= held_out
    own = script.chosen_episodes(2, 4, 5, "drawn", "various", "en")
    assert [each.deals for each in own] == [tuple(drawn(5, 4)), tuple(drawn(6, 4))]


def test_a_server_that_is_not_there(call, tmp_path, monkeypatch):
    monkeypatch.setattr(call.module.Server, "retries", 0)
    reward = tmp_path / "reward.py"
    reward.write_text("def compute_score(*given): return {}")
    done = call("--api_base", "http://127.0.0.1:9/v1", "--output_dir", tmp_path, "--reward_path", reward)
    assert (done.exit_code, "the server did not answer" in done.stderr) == (2, True)


def test_the_summary_tells_everything(call, tmp_path, capsys):
    def result(rights, status="finished", why=""):
        rounds = [
            {"right": right, "light": "red", "choice": 1 if right else None, "reason": "no_answer", "seconds": 0.5}
            for right in rights
        ]
        score = 100 + sum(10 if right else -10 for right in rights)
        return {"status": status, "why": why, "score": score, "right": sum(rights), "screen": "a", "rounds": rounds}

    results = [result([True] * 10), result([True] * 5 + [False] * 5), result([True], "broken off", "a tap was lost")]
    played = Played(results, found=1, dropped=["b dropped out of x: gone"], unfinished=["test-0003"])
    summary = summarise(played)
    assert (summary["episodes"], summary["rounds"], summary["unanswered"]) == (2, 20, {"no_answer": 5})
    assert summary["accuracy"]["value"] == 0.75
    assert (round(summary["accuracy"]["low"], 3), round(summary["accuracy"]["high"], 3)) == (0.531, 0.888)
    assert summary["perfect"]["value"] == 0.5
    call.module.print_summary(played, summary, tmp_path)
    text = capsys.readouterr().out
    for part in ("a: a tap was lost", "b dropped out of x", "test-0003", "5 rounds without an answer (no_answer)"):
        assert part in text
