"""Playing the number game with a served model."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recipes.data.rewards import Score
from recipes.errors import RecipeError
from recipes.tasks.number_game import collect
from recipes.tasks.number_game.collect import MOST_TOKENS, Episode
from recipes.tasks.number_game.data import DATA_SOURCE, QUESTION
from recipes.tasks.number_game.rules import POSITIONS, START, Deal, points
from recipes.tasks.number_game.screens import BrokenPNG, Screen, TapLost, fitted


@dataclass(frozen=True)
class Server:
    """How to reach a server and how to sample; temperature, top_p and max_tokens are those of the recipe's validation.

    Attributes:
        api_base: address with its /v1, of vLLM, Ollama or another.
        model: the name under which it serves the model.
        retries: tries after the first where the server does not answer or refuses, 0.5, 1, 2, 4, 8 seconds apart.
        asks: how often a screenshot is shown where the response has no answer; one where the temperature is 0.
        timeout: seconds for one request.
    """

    api_base: str
    model: str
    temperature: float = 0.6
    top_p: float = 0.95
    max_tokens: int = 128
    retries: int = 4
    asks: int = 3
    timeout: float = 120.0


@dataclass(frozen=True)
class Decision:
    """What the model made of a screenshot.

    Attributes:
        answer: the card, or None where the last response had none.
        responses: all of them; the last one counts.
        reason: the reward's code for a response without an answer, "answered" otherwise.
        seconds: from the first request to the last response.
    """

    answer: int | None
    responses: tuple[str, ...]
    reason: str
    seconds: float


class Agent:
    """Asks a server for decisions; may be used by several threads. Responses are read as the reward reads them."""

    def __init__(self, server: Server, score: Score) -> None:
        """Check that the server answers and has the model.

        Args:
            server: where the model is.
            score: the reward file's `compute_score`.
        """
        from openai import OpenAI

        self.server = server
        self._score = score
        self._client = OpenAI(
            base_url=server.api_base,
            api_key=os.environ.get("OPENAI_API_KEY") or "none",
            max_retries=server.retries,
            timeout=server.timeout,
        )
        self._check_model()

    def decide(self, image: bytes) -> Decision:
        """Show a screenshot (PNG) until a response has an answer, `asks` times at most."""
        begin = time.perf_counter()
        responses: list[str] = []
        for _ in range(self.server.asks if self.server.temperature > 0 else 1):
            responses.append(self._ask(image))
            answer, reason = self.read(responses[-1])
            if answer is not None:
                break
        return Decision(answer, tuple(responses), reason, time.perf_counter() - begin)

    def read(self, response: str) -> tuple[int | None, str]:
        """The card that a response names, by the reward's own rule, and the reason where it names none."""
        results = [self._score(DATA_SOURCE, response, str(position), None) for position in POSITIONS]
        right = [position for position, result in zip(POSITIONS, results, strict=True) if result["accuracy"] == 1.0]
        return (right[0], "answered") if right else (None, str(results[0]["reason"]))

    def _ask(self, image: bytes) -> str:
        picture = "data:image/png;base64," + base64.b64encode(image).decode()
        content = [{"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": QUESTION}]
        reply = self._request(
            self._client.chat.completions.create,
            model=self.server.model,
            messages=[{"role": "user", "content": content}],
            temperature=self.server.temperature,
            top_p=self.server.top_p,
            max_tokens=self.server.max_tokens,
        )
        # Where a server answers 200 with something else, the client hands on what it could make of it.
        choices = getattr(reply, "choices", None)
        if choices is None:
            raise RecipeError(
                f"the server's reply is not a chat completion: {str(reply)[:100]!r}",
                where=self.server.api_base,
                fix="is --api_base right? it usually ends in /v1; finished episodes are kept",
            )
        message = choices[0].message if choices else None
        return str(message.content or "") if message else ""

    def _check_model(self) -> None:
        models = self._request(self._client.models.list, missing_is_fine=True)
        names = [model.id for model in getattr(models, "data", None) or []]
        if names and self.server.model not in names:
            raise RecipeError(
                f"the server has no model {self.server.model}, but {', '.join(names)}",
                where=self.server.api_base,
                fix="name it with --model",
            )

    def _request(self, call: Any, *, missing_is_fine: bool = False, **arguments: Any) -> Any:
        import openai

        try:
            return call(**arguments)
        except openai.APIConnectionError as error:
            raise RecipeError(
                f"the server did not answer, after {self.server.retries} more tries",
                where=self.server.api_base,
                fix="start it again, or check --api_base; finished episodes are kept",
            ) from error
        except openai.NotFoundError as error:
            if missing_is_fine:
                return None
            raise self._refused(error) from error
        except openai.APIStatusError as error:
            raise self._refused(error) from error
        except ValueError as error:
            raise RecipeError(
                f"the server's reply is not JSON: {error}", where=self.server.api_base, fix="is --api_base right?"
            ) from error

    def _refused(self, error: Any) -> RecipeError:
        return RecipeError(
            f"the server refused with status {error.status_code}: {str(error.message)[:300]}",
            where=self.server.api_base,
            fix="does it serve a vision-language model under this name? finished episodes are kept",
        )


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

    report = collect.run(missing, openers(len(missing)), work) if missing else collect.Report[Episode]()
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
    """Figures over the episodes that were finished, with 95% intervals; see `recipes.statistics`.

    `accuracy` is the share of rounds that were right, with a Wilson interval, in all and by light; `score` is the mean
    final score, its interval over episodes; `perfect` is the share of episodes without a mistake. A round without an
    answer counts as wrong.
    """
    from recipes.statistics import mean_with_interval

    finished = [result for result in played.results if result["status"] == "finished"]
    rounds = [each for result in finished for each in result["rounds"]]

    def figure(values: list[float], bounds: tuple[float, float], unit: str) -> dict[str, Any] | None:
        interval = mean_with_interval(values, bounds=bounds, unit=unit)
        return asdict(interval) if interval else None

    def share(values: list[bool]) -> dict[str, Any] | None:
        return figure([float(value) for value in values], (0.0, 1.0), "round")

    score = figure([float(result["score"]) for result in finished], _score_bounds(finished), "episode")
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
