"""Screenshots of whole episodes into a journal: what is not there yet is played, every label checked by the page."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from recipes.errors import RecipeError
from recipes.tasks.number_game import fleet
from recipes.tasks.number_game.episodes import Episode, Journal
from recipes.tasks.number_game.pixels import BrokenPNG, fitted
from recipes.tasks.number_game.rules import START, points
from recipes.tasks.number_game.screens import Screen, TapLost

TRIES = 3  # of an episode whose screenshot is broken or whose tap is lost
MOST_TOKENS = 756  # of a screenshot; with the prompt's text and chat template it stays under max_prompt_length 1024


@dataclass
class Tally:
    """What happened besides finished episodes.

    Attributes:
        found: episodes that were in the journal already.
        played, rounds: what was played now; every label of it was confirmed by the page's own verdict.
        retried: why an episode was begun again.
        dropped: screens that went away, with why.
    """

    found: int = 0
    played: int = 0
    rounds: int = 0
    retried: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)


def collect(
    episodes: Sequence[Episode],
    journal: Journal,
    openers: Callable[[int], list[Callable[[], Screen]]],
    *,
    source: str,
    on_episode: Callable[[int], None],
) -> Tally:
    """Play the episodes that the journal lacks.

    Args:
        openers: makes openers of screens, for at most as many episodes as there are to play; not called without any.
        source: "browser" or "adb", for the record.
        on_episode: called with the number of rounds that were finished.

    Raises:
        RecipeError: a label that the page contradicts, an episode that fails three times, or no screen left. Episodes
            finished until then are in the journal.
    """
    missing = journal.missing(episodes)
    tally = Tally(found=len(episodes) - len(missing))
    tally.retried += [f"the journal's {reason}" for reason in journal.broken]
    on_episode(sum(len(episode.deals) for episode in episodes) - sum(len(episode.deals) for episode in missing))
    if not missing:
        return tally

    lock = threading.Lock()

    def work(screen: Screen, episode: Episode) -> None:
        images, scores = _insist(screen, episode, tally)
        journal.write(episode, images, scores, source)
        with lock:
            tally.played += 1
            tally.rounds += len(images)
            on_episode(len(images))

    report = fleet.run(missing, openers(len(missing)), work)
    tally.dropped += [f"{name} dropped out of episode {episode.key}: {why}" for name, episode, why in report.dropped]
    if report.unfinished:
        raise RecipeError(
            f"{len(report.unfinished)} of {len(missing)} episodes are not played, no screen is left",
            where="; ".join(tally.dropped),
            fix="connect again and repeat the command; finished episodes are kept",
        )
    return tally


def _insist(screen: Screen, episode: Episode, tally: Tally) -> tuple[list[bytes], list[int]]:
    """Play an episode, from the start again where a picture is broken or a tap is lost."""
    for _ in range(TRIES):
        try:
            return _play(screen, episode, tally)
        except (BrokenPNG, TapLost) as error:
            tally.retried.append(f"{episode.key} on {screen.name}: {error}")
    raise RecipeError(
        f"episode {episode.key} failed {TRIES} times on {screen.name}",
        where="; ".join(tally.retried[-TRIES:]),
        fix="look at the screen: something lies over the page, or it is too slow",
    )


def _play(screen: Screen, episode: Episode, tally: Tally) -> tuple[list[bytes], list[int]]:
    images, scores, score = [], [], START
    screen.open(list(episode.deals), episode.look)
    for deal, tap in zip(episode.deals, episode.taps, strict=True):
        images.append(fitted(screen.screenshot(), MOST_TOKENS))
        scores.append(score)
        _agree(screen, f"{episode.key}: the page shows", screen.deal(), deal)
        _agree(screen, f"{episode.key}: the page's score is", screen.score(), score)
        right = tap == deal.answer
        verdict = screen.choose(tap).verdict
        _agree(screen, f"{episode.key}: card {tap} of {deal.code} is", verdict, "right" if right else "wrong")
        score += points(right)
        screen.advance()
    return images, scores


def _agree(screen: Screen, what: str, page: object, rules: object) -> None:
    """A screen that cannot say what the page holds (None) contradicts nothing."""
    if page is not None and page != rules:
        raise RecipeError(
            f"{what} {page}, and rules.py says {rules}", where=screen.name, fix="report this: page and rules differ"
        )
