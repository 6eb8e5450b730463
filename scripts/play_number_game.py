#!/usr/bin/env python
"""Let a model play the number game: screenshots to an OpenAI-compatible server, taps in Chromium."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.installation import ensure

ensure()

import typer

from recipes.errors import reported_errors
from recipes.paths import artifacts, command_line
from recipes.rewards.loading import load_reward
from recipes.statistics import Interval
from recipes.tasks.number_game.collect import Episode, planned
from recipes.tasks.number_game.play import (
    Agent,
    GameResult,
    Server,
    Summary,
    compare,
    draw_strip,
    play,
    read_games,
    summarise,
)
from recipes.tasks.number_game.rules import DEFAULT_SCREEN, PRESETS, Settings


def chosen_episodes(count: int, rounds: int, seed: int, looks: str, lang: str) -> list[Episode]:
    """Episodes of held-out deals."""
    if looks == "tiny":
        settings = replace(PRESETS["tiny"], rounds=rounds, languages=(lang,))
    else:
        screens = (DEFAULT_SCREEN,) if looks == "plain" else Settings.screens
        settings = Settings(rounds=rounds, languages=(lang,), looks=looks, screens=screens)
    return planned("test", count * rounds, settings, seed=seed)


def print_figures(title: str, figures: Mapping[str, Interval]) -> None:
    """Intervals as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table("figure", "value", "95% interval", "method", title=title)
    for name, figure in figures.items():
        interval = "-" if figure.low is None else f"{figure.low:.3g} to {figure.high:.3g}"
        table.add_row(name, f"{figure.value:.3g}", interval, figure.method)
    Console().print(table)


def print_summary(summary: Summary, resumed: int, folder: Path) -> None:
    """The summary as a table."""
    title = f"{summary.episodes} episodes, {summary.rounds} rounds ({resumed} were there already)"
    figures = {"rounds right": summary.accuracy, "episodes without a mistake": summary.perfect}
    figures |= {f"  {light} light": each for light, each in summary.accuracy_by_light.items()}
    print_figures(title, figures | {"final score": summary.score})
    for reason, count in summary.unanswered.items():
        print(f"{count} rounds without an answer ({reason}), counted as wrong")
    print(f"results and screenshots: {folder}")


def write_comparison(base: Path, folder: Path, results: list[GameResult], report: Path | None) -> None:
    """Print how the model differs from the one whose games are in `base`; write `report`.json and `report`.png."""
    games = {"base": read_games(base, results), "trained": read_games(folder, results)}
    figures = compare(*([result for _, result in each] for each in games.values()))
    differences = {"rounds right": figures.accuracy.difference, "final score": figures.score}
    print_figures(f"minus {base}, the same {len(results)} games", differences)
    print(f"exact McNemar test over the rounds: p = {figures.accuracy.p_value:.2g}")
    if report:
        report.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"command": command_line(), **asdict(figures)}, indent=1)
        report.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
        draw_strip({player: each[0] for player, each in games.items()}, report.with_suffix(".png"))


def main(
    api_base: Annotated[
        str, typer.Option("--api_base", help="Server with its /v1; Ollama: http://127.0.0.1:11434/v1.")
    ] = "http://127.0.0.1:8000/v1",
    model: Annotated[str, typer.Option(help="Name under which the server has the model.")] = "number_game",
    episodes: Annotated[int, typer.Option(min=1, help="Whole episodes, over all screens together.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Rounds of an episode.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same episodes.")] = 0,
    looks: Annotated[
        Literal["plain", "various", "tiny"], typer.Option(help="tiny: small, as the tiny model was tested.")
    ] = "plain",
    lang: Annotated[Literal["en", "zh"], typer.Option(help="Language of the page.")] = "en",
    temperature: Annotated[float, typer.Option(min=0.0, help="As in the recipe's validation.")] = 0.6,
    top_p: Annotated[float, typer.Option("--top_p", help="As in the recipe's validation.")] = 0.95,
    max_tokens: Annotated[int, typer.Option("--max_tokens", min=1, help="As in training.")] = 128,
    workers: Annotated[int, typer.Option(min=1, help="Chromium windows at once.")] = 1,
    output_dir: Annotated[
        Path | None, typer.Option("--output_dir", help="Default: artifacts/play/number_game/<model>.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Folder of another model's games, played with the same options: compare.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="With --against: path without an ending; .json and a strip, .png, are written.")
    ] = None,
) -> None:
    """Play held-out deals, write a screenshot a decision and a result an episode, and sum up. Finished ones stay."""
    with reported_errors():
        chosen = chosen_episodes(episodes, rounds, seed, looks, lang)
        score = load_reward("reward_functions/number_game.py").compute_score
        server = Server(api_base, model, temperature, top_p, max_tokens)
        folder = output_dir or artifacts() / "play" / "number_game" / re.sub(r"[^\w.-]+", "_", model).strip("_")
        try:
            results, resumed = play(chosen, Agent(server, score), folder, workers, on_episode=_progress)
        except KeyboardInterrupt:
            print("interrupted; finished episodes are kept: repeat the command", file=sys.stderr)
            raise SystemExit(130) from None
        summary = summarise(results)
        text = json.dumps(asdict(summary) | {"found": resumed}, indent=2)
        (folder / "summary.json").write_text(text + "\n", encoding="utf-8")
        print_summary(summary, resumed, folder)
        if against:
            write_comparison(against, folder, results, report)


def _progress(result: GameResult) -> None:
    print(
        f"episode {result.episode.number + 1} on {result.screen}: "
        f"{result.right} of {len(result.rounds)} right, score {result.score}, {result.seconds:.1f} s",
        file=sys.stderr,
    )


if __name__ == "__main__":
    typer.run(main)
