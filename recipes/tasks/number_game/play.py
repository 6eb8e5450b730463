"""Playing the number game with a served model, and the report on played games."""

import base64
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from recipes.chat_server import ChatServer
from recipes.errors import RecipeError
from recipes.files import write_whole
from recipes.statistics import Interval, Paired, mean_with_interval, paired_difference
from recipes.tasks.number_game.chromium import ChromiumScreen, run
from recipes.tasks.number_game.collect import DATA_SOURCE, QUESTION, Episode, play_rounds
from recipes.tasks.number_game.rules import POSITIONS, START, Deal, points

RESULT = "result.json"
SAMPLING = ("temperature", "top_p", "max_tokens", "asks")


@dataclass(frozen=True)
class Server:
    """A server and its sampling; temperature, top_p and max_tokens are those of the recipe's validation."""

    api_base: str  # address with its /v1, of vLLM, Ollama or another
    model: str  # the name under which it serves the model
    temperature: float = 0.6
    top_p: float = 0.95
    max_tokens: int = 128
    retries: int = 4  # tries after the first where the server does not answer or refuses, 0.5, 1, 2, 4 seconds apart
    asks: int = 3  # how often a screenshot is shown, at most, to get an answer; once if the temperature is 0
    timeout: float = 120.0  # seconds for one request


class Decision(NamedTuple):
    """The card that a model chose, its responses, and "answered"; or None, and the reward's reason for no answer."""

    choice: int | None
    responses: list[str]
    reason: str


class Agent:
    """Asks a server for decisions; may be used by several threads. Responses are read as the reward reads them."""

    def __init__(self, server: Server, score: Callable[..., Any]) -> None:
        """Check that the server answers and has the model; `score` is the reward file's `compute_score`."""
        self.server = server
        self._score = score
        self._chat = ChatServer(server.api_base, server.model, retries=server.retries, timeout=server.timeout)

    def decide(self, image: bytes) -> Decision:
        """Show a screenshot (PNG) until a response has an answer, `asks` times at most."""
        picture = "data:image/png;base64," + base64.b64encode(image).decode()
        content = [{"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": QUESTION}]
        responses: list[str] = []
        for _ in range(self.server.asks if self.server.temperature > 0 else 1):
            completion = self._chat.complete(
                [{"role": "user", "content": content}],
                temperature=self.server.temperature,
                top_p=self.server.top_p,
                max_tokens=self.server.max_tokens,
            )
            responses.append(completion.text)
            for position in POSITIONS:
                result = self._score(DATA_SOURCE, completion.text, str(position), None)
                if result["accuracy"] == 1.0:
                    return Decision(position, responses, "answered")
        return Decision(None, responses, str(result["reason"]))


@dataclass(frozen=True)
class GameRound:
    """One round: what was shown, answered and tapped."""

    round: int  # counts from 1
    deal: str  # code of the round that the screen showed, such as `g374`: `light` and `digits` in one
    light: str
    digits: tuple[int, ...]
    answer: int  # the right card
    choice: int | None  # the card that the model named; None: it named none, and a wrong one was `tapped`
    tapped: int
    reason: str  # "answered", or the reward's reason for a response without an answer
    responses: list[str]
    seconds: float  # time that the decision took
    screenshot: str  # file beside the result
    right: bool


@dataclass(frozen=True)
class GameResult:
    """One played episode, as `result.json` has it."""

    score: int  # the final score
    right: int  # number of right rounds
    screen: str
    server: Server
    began: str  # local start time
    seconds: float  # duration of the episode
    episode: Episode  # what was played, without taps
    rounds: list[GameRound]


def read_result(path: Path) -> GameResult:
    """Read a `result.json`. Raises RecipeError if the file has no valid result."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(GameResult).validate_json(path.read_bytes())
    except ValidationError as error:
        what = f"this is no result of a game: {error.errors()[0]['msg']} in {error.errors()[0]['loc']}"
        raise RecipeError(what, where=str(path), fix="delete its folder, and the episode is played again") from error


def play(
    episodes: Sequence[Episode], agent: Agent, folder: Path, workers: int, *, on_episode: Callable[[GameResult], None]
) -> tuple[list[GameResult], int]:
    """Play the episodes that have no result in `folder` yet on `workers` screens.

    Returns all results, in the order of the episodes, and how many of them an earlier run had written.
    """

    def folder_of(episode: Episode) -> Path:
        # Its name is made of everything that a result depends on, which the server's address and the taps are not.
        sampling = [agent.server.model, *(getattr(agent.server, name) for name in SAMPLING)]
        shown = {name: value for name, value in vars(episode).items() if name != "taps"}
        text = json.dumps([*sampling, shown], sort_keys=True)
        return folder / f"episode_{episode.number + 1:03d}_{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    folders = {episode.key: folder_of(episode) for episode in episodes}
    missing = [episode for episode in episodes if not (folders[episode.key] / RESULT).is_file()]
    run(missing, lambda screen, each: on_episode(play_episode(screen, each, agent, folders[each.key])), workers)
    results = [read_result(folders[episode.key] / RESULT) for episode in episodes]
    return results, len(episodes) - len(missing)


def play_episode(screen: ChromiumScreen, episode: Episode, agent: Agent, folder: Path) -> GameResult:
    """Play one episode and write its screenshots and, when it is over, its result."""
    folder.mkdir(parents=True, exist_ok=True)
    began, start = time.strftime("%Y-%m-%dT%H:%M:%S%z"), time.monotonic()
    rounds: list[GameRound] = []

    def tap(deal: Deal, image: bytes, _: int) -> int:
        number = len(rounds) + 1
        name = f"round_{number:02d}.png"
        (folder / name).write_bytes(image)
        asked = time.perf_counter()
        decision = agent.decide(image)
        seconds = round(time.perf_counter() - asked, 3)
        # A round without an answer is lost like one with a wrong answer, and the game goes on.
        wrong = next(position for position in POSITIONS if position != deal.answer)
        card = wrong if decision.choice is None else decision.choice
        shown = {"round": number, "deal": deal.code, **deal._asdict(), "answer": deal.answer, "screenshot": name}
        said = {**decision._asdict(), "tapped": card, "seconds": seconds, "right": card == deal.answer}
        rounds.append(GameRound(**shown, **said))
        return card

    score = play_rounds(screen, episode, tap)
    result = GameResult(
        score=score,
        right=sum(each.right for each in rounds),
        screen=screen.name,
        server=agent.server,
        began=began,
        seconds=round(time.monotonic() - start, 3),
        episode=replace(episode, taps=()),
        rounds=rounds,
    )
    write_whole(folder / RESULT, json.dumps(asdict(result), indent=2, ensure_ascii=False) + "\n")
    return result


@dataclass(frozen=True)
class Summary:
    """Figures over episodes, with 95% intervals; see `recipes.statistics`."""

    episodes: int
    rounds: int
    # Share of rounds that were right, with a Wilson interval; a round without an answer counts as wrong.
    accuracy: Interval
    accuracy_by_light: dict[str, Interval]
    score: Interval  # mean final score, its interval over episodes
    perfect: Interval  # share of episodes without a mistake
    unanswered: dict[str, int]  # rounds without an answer, by the reward's reason
    seconds_per_decision: float


def summarise(results: Sequence[GameResult]) -> Summary:
    """The figures of played games, of which there is at least one."""
    rounds = [each for result in results for each in result.rounds]

    def share(values: list[bool]) -> Interval:
        return mean_with_interval([float(value) for value in values], bounds=(0.0, 1.0), unit="round")

    most = max(len(result.rounds) for result in results)
    bounds = START + most * points(False), START + most * points(True)
    lights = sorted({each.light for each in rounds})
    return Summary(
        episodes=len(results),
        rounds=len(rounds),
        accuracy=share([each.right for each in rounds]),
        accuracy_by_light={light: share([each.right for each in rounds if each.light == light]) for light in lights},
        score=mean_with_interval([float(each.score) for each in results], bounds=bounds, unit="episode"),
        perfect=share([result.right == len(result.rounds) for result in results]),
        unanswered=dict(Counter(each.reason for each in rounds if each.choice is None)),
        seconds_per_decision=round(sum(each.seconds for each in rounds) / len(rounds), 3),
    )


def read_games(folder: Path, results: Sequence[GameResult]) -> list[tuple[Path, GameResult]]:
    """The results in `folder` of the same games, sampled in the same way, in the order of `results`."""

    def key(result: GameResult) -> tuple[object, ...]:
        return result.episode, *(getattr(result.server, name) for name in SAMPLING)

    found = [(path.parent, read_result(path)) for path in sorted(folder.glob(f"*/{RESULT}"))]
    games = {key(result): (game, result) for game, result in found}
    missing = [result for result in results if key(result) not in games]
    if missing:
        what = f"{len(missing)} of {len(results)} games are not there with the same sampling"
        fix = "let the other model play with the same options first, or name its folder"
        raise RecipeError(what, where=str(folder), fix=fix)
    return [games[key(result)] for result in results]


@dataclass(frozen=True)
class PlayComparison:
    """Two models on the same games: both summaries, and trained minus base."""

    base: Summary
    trained: Summary
    accuracy: Paired  # paired difference of the rounds' accuracy
    score: Interval  # difference of the mean final scores, with an interval over games
    scores: list[tuple[int, int]]  # (base, trained) of each game


def compare(base: Sequence[GameResult], trained: Sequence[GameResult]) -> PlayComparison:
    """Compare two models on the same games, in the same order."""
    before, after = ([each.right for result in games for each in result.rounds] for games in (base, trained))
    scores = [(one.score, other.score) for one, other in zip(base, trained, strict=True)]
    most = max(len(result.rounds) for result in base) * (points(True) - points(False))
    return PlayComparison(
        base=summarise(base),
        trained=summarise(trained),
        accuracy=paired_difference(before, after, bounds=(0.0, 1.0)),
        score=mean_with_interval([float(new - old) for old, new in scores], bounds=(-most, most), unit="episode"),
        scores=scores,
    )


def draw_strip(games: Mapping[str, tuple[Path, GameResult]], path: Path) -> None:
    """Draw one game as a PNG, a row for each player: each round's screenshot, verdict, and the player's last response.

    `games` has for each player the folder and the result.
    """
    from matplotlib.figure import Figure
    from PIL import Image

    count = max(len(result.rounds) for _, result in games.values())
    figure = Figure(figsize=(1.45 * count, 2.9 * len(games)), layout="constrained")
    axes = figure.subplots(len(games), count, squeeze=False)
    for row, (player, (folder, result)) in zip(axes, games.items(), strict=True):
        row[0].set_ylabel(f"{player}: {result.score} points", fontsize=11)
        for axis, each in zip(row, result.rounds, strict=True):
            axis.imshow(Image.open(folder / each.screenshot))
            axis.set_xticks([], [])
            axis.set_yticks([], [])
            verdict, colour = ("right", "#1a7f37") if each.right else ("wrong", "#c4302b")
            axis.set_title(verdict, color=colour, fontsize=10, weight="bold")
            axis.set_xlabel(each.responses[-1].replace(". ", ".\n"), fontsize=7)
    figure.savefig(path, dpi=100)
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)
