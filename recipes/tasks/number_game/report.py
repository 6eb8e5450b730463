"""Report on played games: figures with intervals, two models compared on the same games, and a drawing of one game."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recipes.errors import RecipeError
from recipes.statistics import Interval, Paired, mean_with_interval, paired_difference
from recipes.tasks.number_game.play import RESULT, SAMPLING, GameResult, read_result
from recipes.tasks.number_game.rules import START, points


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
    """Read another model's results of the same games, sampled in the same way, in the order of `results`.

    Args:
        folder: the `output_dir` of the other model's games.
        results: the games to find there.

    Raises:
        RecipeError: a game is missing in the folder.
    """
    found = [(path.parent, read_result(path)) for path in sorted(folder.glob(f"*/{RESULT}"))]
    games = {_key(result): (game, result) for game, result in found}
    missing = [result for result in results if _key(result) not in games]
    if missing:
        raise RecipeError(
            f"{len(missing)} of {len(results)} games are not there with the same sampling",
            where=str(folder),
            fix="let the other model play with the same options first, or name its folder",
        )
    return [games[_key(result)] for result in results]


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
    """Draw one game, a row for each player: each round's screenshot, verdict, and the player's last response.

    Args:
        games: player -> folder and result of the same game.
        path: the PNG to write.
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


def _key(result: GameResult) -> tuple[object, ...]:
    """Return what identifies a game: the episode, and how the model was sampled."""
    return result.episode, *(getattr(result.server, name) for name in SAMPLING)
