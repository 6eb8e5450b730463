"""The playing script: which episodes it plays, what it reports, and how it compares two models."""

import json
from dataclasses import asdict

from PIL import Image

from recipes.tasks.number_game.collect import Episode
from recipes.tasks.number_game.play import GameResult, GameRound, Server, compare, read_games, summarise


def result(number, rights, *, temperature=0.0):
    """A game's result with these rounds right."""
    shown = {"deal": "red-1-2-3", "light": "red", "digits": (1, 2, 3), "answer": 1, "screenshot": "round.png"}
    said = {"tapped": 1, "reason": "no_answer", "responses": [""], "seconds": 0.5}
    rounds = []
    for index, right in enumerate(rights, 1):
        rounds.append(GameRound(round=index, choice=1 if right else None, right=right, **shown, **said))
    facts = {"screen": "a", "began": "2026-01-01T00:00:00+0000", "seconds": 1.0}
    facts["server"] = Server("http://127.0.0.1/v1", "m", temperature, top_p=1.0, max_tokens=24)
    episode = Episode(split="test", number=number, deals=("red-1-2-3",) * len(rights))
    score = 100 + sum(10 if right else -10 for right in rights)
    return GameResult(score=score, right=sum(rights), episode=episode, rounds=rounds, **facts)


def write(folder, results):
    for number, each in enumerate(results):
        (folder / str(number)).mkdir(parents=True)
        (folder / str(number) / "result.json").write_text(json.dumps(asdict(each)))
        Image.new("RGB", (14, 28)).save(folder / str(number) / "round.png")


def test_two_models_are_compared_on_the_same_games(script, tmp_path):
    base = [result(0, [True, False, False, False]), result(1, [True] * 2 + [False] * 2)]
    trained = [result(1, [True] * 4), result(0, [True, True, True, False])]
    write(tmp_path / "base", [*base, result(1, [False] * 4, temperature=0.6)])
    write(tmp_path / "trained", trained)
    ordered = [game for _, game in read_games(tmp_path / "base", trained)]
    assert ordered == base[::-1]
    summary, figures = summarise(trained), compare(ordered, trained)
    assert (summary.episodes, summary.rounds, summary.unanswered) == (2, 8, {"no_answer": 1})
    assert (summary.accuracy.value, summary.perfect.value, summary.score.value) == (7 / 8, 0.5, 130)
    assert figures.accuracy.difference.value == 4 / 8
    assert (figures.accuracy.won, figures.accuracy.lost) == (4, 0)
    assert (figures.score.value, figures.scores) == (40.0, [(100, 140), (80, 120)])
    write_comparison = script("play_number_game").module.write_comparison
    write_comparison(tmp_path / "base", tmp_path / "trained", trained, tmp_path / "docs" / "play")
    written = json.loads((tmp_path / "docs" / "play.json").read_text())
    assert written["trained"]["accuracy"]["value"] == 7 / 8
    assert Image.open(tmp_path / "docs" / "play.png").width > 300
