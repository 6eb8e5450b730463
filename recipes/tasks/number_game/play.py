"""Whole episodes by a model: a screenshot for every decision, a JSON result for every episode, a summary of all."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError
from recipes.tasks.number_game import fleet
from recipes.tasks.number_game.agent import Agent, Decision
from recipes.tasks.number_game.collect import MOST_TOKENS
from recipes.tasks.number_game.episodes import Episode
from recipes.tasks.number_game.pixels import BrokenPNG, fitted
from recipes.tasks.number_game.rules import POSITIONS, START, Deal, points
from recipes.tasks.number_game.screens import Screen, TapLost

RESULT = "result.json"
SHOTS = 3  # tries to get a whole screenshot


@dataclass
class Played:
    """All results, found or new, in the order of the episodes; and what there is no result of.

    Attributes:
        found: how many results were there already.
        dropped: screens that went away, with why; their episodes were played elsewhere or are in `unfinished`.
        unfinished: episodes that no screen was left for.
    """

    results: list[dict[str, Any]]
    found: int
    dropped: list[str]
    unfinished: list[str]


def play(
    episodes: Sequence[Episode],
    agent: Agent,
    openers: Callable[[int], list[Callable[[], Screen]]],
    folder: Path,
    *,
    on_episode: Callable[[dict[str, Any]], None],
) -> Played:
    """Play the episodes that have no result in `folder` yet, several screens at once.

    An episode's folder is named by its rounds, its look, the model and its sampling, so that another model's results
    are not taken for this one's. An episode whose tap is lost has a result as well, with the rounds until then.
    """
    folders = {episode.key: folder / _name(episode, agent) for episode in episodes}
    missing = [episode for episode in episodes if _read(folders[episode.key]) is None]

    def work(screen: Screen, episode: Episode) -> None:
        result = play_episode(screen, episode, agent, folders[episode.key])
        on_episode(result)

    report = fleet.run(missing, openers(len(missing)), work) if missing else fleet.Report[Episode]()
    results = [_read(folders[episode.key]) for episode in episodes]
    return Played(
        results=[result for result in results if result is not None],
        found=len(episodes) - len(missing),
        dropped=[f"{name} dropped out of {episode.key}: {why}" for name, episode, why in report.dropped],
        unfinished=[episode.key for episode in report.unfinished],
    )


def play_episode(screen: Screen, episode: Episode, agent: Agent, folder: Path) -> dict[str, Any]:
    """Play one episode and write its screenshots and, when it is over, its result.

    Returns:
        The result: `status` ("finished", or "broken off" with `why`), `score`, `right`, and `rounds`, each with the
        deal, its answer, the card tapped, all responses, the page's verdict and how it was seen.
    """
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.time()
    rounds: list[dict[str, Any]] = []
    status, why = "finished", ""
    try:
        screen.open(list(episode.deals), episode.look)
        for index, deal in enumerate(episode.deals):
            rounds.append(_play_round(screen, deal, index, agent, folder))
            screen.advance()
    except (TapLost, BrokenPNG) as error:
        status, why = "broken off", str(error)
    result = {
        "status": status,
        "why": why,
        "score": START + sum(points(each["right"]) for each in rounds),
        "right": sum(each["right"] for each in rounds),
        "screen": screen.name,
        "server": asdict(agent.server),
        "began": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(begin)),
        "seconds": round(time.time() - begin, 3),
        "episode": _game(episode),
        "rounds": rounds,
    }
    seen = screen.score() if status == "finished" else None
    if seen is not None and seen != result["score"]:
        raise RecipeError(
            f"the page's final score is {seen}, and rules.py says {result['score']}",
            where=str(folder),
            fix="report this: page and rules differ",
        )
    draft = folder / f"{RESULT}.draft"
    draft.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    draft.rename(folder / RESULT)
    return result


def summarise(played: Played) -> dict[str, Any]:
    """Figures over the episodes that were finished, with 95% intervals; see `recipes.evaluation.intervals`.

    `accuracy` is the share of rounds that were right, with a Wilson interval, in all and by light; `score` is the mean
    final score, its interval over episodes; `perfect` is the share of episodes without a mistake. A round without an
    answer counts as wrong.
    """
    from recipes.evaluation.intervals import mean_with_interval

    finished = [result for result in played.results if result["status"] == "finished"]
    rounds = [each for result in finished for each in result["rounds"]]

    def share(values: list[bool]) -> Any:
        return mean_with_interval([float(value) for value in values], bounds=(0.0, 1.0))

    score = mean_with_interval([float(result["score"]) for result in finished], bounds=_score_bounds(finished))
    if score:
        score["method"] = score["method"].replace("question", "episode")
    lights = sorted({each["light"] for each in rounds})
    return {
        "episodes": len(finished),
        "rounds": len(rounds),
        "accuracy": share([each["right"] for each in rounds]),
        "accuracy_by_light": {
            light: share([each["right"] for each in rounds if each["light"] == light]) for light in lights
        },
        "score": score,
        "perfect": share([result["right"] == len(result["rounds"]) for result in finished]),
        "unanswered": dict(Counter(each["reason"] for each in rounds if each["choice"] is None)),
        "seconds_per_decision": round(sum(each["seconds"] for each in rounds) / len(rounds), 3) if rounds else None,
        "found": played.found,
        "broken_off": [f"{result['screen']}: {result['why']}" for result in played.results if result not in finished],
        "dropped_out": played.dropped,
        "not_played": played.unfinished,
    }


def _play_round(screen: Screen, deal: Deal, index: int, agent: Agent, folder: Path) -> dict[str, Any]:
    shown = screen.deal()
    if shown is not None and shown != deal:
        raise RecipeError(f"the page shows {shown.code}, not {deal.code}", where=screen.name, fix="report this bug")
    image = _whole_screenshot(screen)
    name = f"round_{index + 1:02d}.png"
    (folder / name).write_bytes(image)
    decision = agent.decide(image)
    # A round without an answer is lost like one with a wrong answer, and the game goes on.
    tap = decision.answer if decision.answer is not None else next(p for p in POSITIONS if p != deal.answer)
    outcome = screen.choose(tap)
    right = tap == deal.answer
    if outcome.verdict != ("right" if right else "wrong"):
        raise RecipeError(
            f"the page calls card {tap} of {deal.code} {outcome.verdict}",
            where=f"{screen.name}, {folder / name}",
            fix="report this: page and rules differ",
        )
    return _record(index, deal, decision, tap, outcome.seen, name) | {"right": right}


def _record(index: int, deal: Deal, decision: Decision, tap: int, seen: str, name: str) -> dict[str, Any]:
    return {
        "round": index + 1,
        "deal": deal.code,
        "light": deal.light,
        "digits": list(deal.digits),
        "answer": deal.answer,
        "choice": decision.answer,
        "tapped": tap,
        "reason": decision.reason,
        "responses": list(decision.responses),
        "seconds": round(decision.seconds, 3),
        "effect_seen_in": seen,
        "screenshot": name,
    }


def _whole_screenshot(screen: Screen) -> bytes:
    """A screenshot that fits the prompt; taken again where it is broken."""
    for _ in range(SHOTS - 1):
        try:
            return fitted(screen.screenshot(), MOST_TOKENS)
        except BrokenPNG:
            continue
    return fitted(screen.screenshot(), MOST_TOKENS)


def _score_bounds(finished: list[dict[str, Any]]) -> tuple[float, float]:
    most = max((len(result["rounds"]) for result in finished), default=0)
    return START + most * points(False), START + most * points(True)


def _name(episode: Episode, agent: Agent) -> str:
    server = agent.server  # what a result depends on; where the server stands is not part of it
    sampling = [server.model, server.temperature, server.top_p, server.max_tokens, server.asks]
    text = json.dumps([*sampling, _game(episode)], sort_keys=True)
    return f"episode_{episode.number + 1:03d}_{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def _game(episode: Episode) -> dict[str, Any]:
    """The episode without the taps, which are those of the player that collects."""
    return {name: value for name, value in episode.plan().items() if name != "taps"}


def _read(folder: Path) -> dict[str, Any] | None:
    path = folder / RESULT
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
