"""Collecting screenshots: episodes are planned, played on any number of screens, and kept so that a run resumes."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError
from recipes.files import whole_folder
from recipes.tasks.number_game.pixels import BrokenPNG, decoded, fitted
from recipes.tasks.number_game.rules import POSITIONS, START, Appearance, Deal, Settings, balanced, points
from recipes.tasks.number_game.screens import Openers, Screen, TapLost, check_agreement, run

RECORD = "episode.json"
# Share of rounds in which the collecting player taps a wrong card, so that scores and rounds on the screen vary.
MISTAKES = 0.25
TRIES = 3  # of an episode whose screenshot is broken or whose tap is lost
MOST_TOKENS = 756  # of a screenshot; with the prompt's text and chat template it stays under max_prompt_length 1024


@dataclass(frozen=True, kw_only=True)
class Game(Appearance):
    """What is on the screen in an episode: how it looks, its split, its number there, and the codes of its rounds."""

    split: str
    number: int
    deals: tuple[str, ...]


@dataclass(frozen=True)
class Episode:
    """One game to play: its split, its number there, its rounds, how it looks, and the cards that are tapped."""

    split: str
    number: int
    deals: tuple[Deal, ...]
    appearance: Appearance
    taps: tuple[int, ...]

    @property
    def key(self) -> str:
        """Name of its folder in the journal; other rounds or another appearance give another name."""
        text = json.dumps(self.plan(), sort_keys=True)
        return f"{self.split}-{self.number:04d}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    @property
    def game(self) -> Game:
        """The episode without the taps, which are those of the player that collects."""
        deals = tuple(deal.code for deal in self.deals)
        return Game(**vars(self.appearance), split=self.split, number=self.number, deals=deals)

    def plan(self) -> dict[str, Any]:
        """All of it as JSON."""
        return {**vars(self.game), "taps": self.taps}


@dataclass(frozen=True)
class Round:
    """One screenshot before its choice, with the state that it shows; `index` counts the episode's rounds from 0."""

    episode: Episode
    index: int
    image: bytes
    score: int
    source: str

    @property
    def deal(self) -> Deal:
        """The light and the digits."""
        return self.episode.deals[self.index]


def planned(split: str, size: int, settings: Settings, *, seed: int) -> list[Episode]:
    """Episodes with `size` rounds in all, balanced over lights and answers; the last one may be shorter."""
    rng = random.Random(f"{seed}/{split}")
    deals = balanced(split, size, rng)
    episodes = []
    for start in range(0, size, settings.rounds):
        part = tuple(deals[start : start + settings.rounds])
        appearance = settings.appearance(split, rng)
        taps = tuple(_tap(deal, rng) for deal in part)
        episodes.append(Episode(split, start // settings.rounds, part, appearance, taps))
    return episodes


def _tap(deal: Deal, rng: random.Random) -> int:
    wrong = [position for position in POSITIONS if position != deal.answer]
    return rng.choice(wrong) if rng.random() < MISTAKES else deal.answer


class Journal:
    """Finished episodes in a folder, one folder each: `00.png`, `01.png`, ... and `episode.json`.

    An episode's folder appears in one move when all of it is on disk, so what is there is whole.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broken: list[str] = []

    def missing(self, episodes: Sequence[Episode]) -> list[Episode]:
        """Those that are not there, or whose files are damaged; these are deleted and noted in `broken`."""
        return [episode for episode in episodes if not self._holds(episode)]

    def write(self, episode: Episode, images: Sequence[bytes], scores: Sequence[int], source: str) -> None:
        """Record a finished episode."""
        try:
            with whole_folder(self.folder / episode.key) as draft:
                for index, image in enumerate(images):
                    (draft / f"{index:02d}.png").write_bytes(image)
                record = {**episode.plan(), "scores": list(scores), "source": source}
                (draft / RECORD).write_text(json.dumps(record) + "\n", encoding="utf-8")
        except OSError as error:
            raise RecipeError(
                f"an episode cannot be written: {error}", where=str(self.folder), fix="free space; finished ones stay"
            ) from error

    def rounds(self, episodes: Sequence[Episode]) -> Iterator[Round]:
        """The recorded rounds of these episodes, in order."""
        for episode in episodes:
            folder = self.folder / episode.key
            record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
            for index in range(len(episode.deals)):
                image = (folder / f"{index:02d}.png").read_bytes()
                yield Round(episode, index, image, record["scores"][index], record["source"])

    def _holds(self, episode: Episode) -> bool:
        folder = self.folder / episode.key
        if not folder.is_dir():
            return False
        try:
            for each in self.rounds([episode]):
                decoded(each.image)
        except (OSError, ValueError, LookupError, BrokenPNG) as error:
            self.broken.append(f"{episode.key}: {error}")
            shutil.rmtree(folder)
            return False
        return True


@dataclass
class Tally:
    """Counts of what happened besides finished episodes.

    Attributes:
        resumed: episodes that were in the journal already.
        played, rounds: what was played now; every label of it was confirmed by the page's own verdict.
        retried: why an episode was begun again.
        dropped: screens that went away, with why.
    """

    resumed: int = 0
    played: int = 0
    rounds: int = 0
    retried: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)


def collect(
    episodes: Sequence[Episode],
    journal: Journal,
    openers: Openers,
    *,
    source: str,
    on_episode: Callable[[int], None],
) -> Tally:
    """Play the episodes that the journal lacks.

    Args:
        openers: makes openers of screens, for at most as many episodes as there are to play; not called without any.
        source: for the record.
        on_episode: called with the number of rounds that were finished.

    Raises:
        RecipeError: a label that the page contradicts, an episode that fails three times, or no screen left. Episodes
            finished until then are in the journal.
    """
    missing = journal.missing(episodes)
    tally = Tally(resumed=len(episodes) - len(missing))
    tally.retried += [f"the journal's {reason}" for reason in journal.broken]
    on_episode(sum(len(episode.deals) for episode in episodes) - sum(len(episode.deals) for episode in missing))
    if not missing:
        return tally
    lock = threading.Lock()

    def work(screen: Screen, episode: Episode) -> None:
        images, scores = _play_insistently(screen, episode, tally)
        journal.write(episode, images, scores, source)
        with lock:
            tally.played += 1
            tally.rounds += len(images)
            on_episode(len(images))

    report = run(missing, openers(len(missing)), work)
    tally.dropped += [f"{name} dropped out of episode {episode.key}: {why}" for name, episode, why in report.dropped]
    if report.unfinished:
        raise RecipeError(
            f"{len(report.unfinished)} of {len(missing)} episodes are not played, no screen is left",
            where="; ".join(tally.dropped),
            fix="connect again and repeat the command; finished episodes are kept",
        )
    return tally


def _play_insistently(screen: Screen, episode: Episode, tally: Tally) -> tuple[list[bytes], list[int]]:
    """Play an episode, from the start again where a picture is broken or a tap is lost."""
    for _ in range(TRIES):
        try:
            return _play(screen, episode)
        except (BrokenPNG, TapLost) as error:
            tally.retried.append(f"{episode.key} on {screen.name}: {error}")
    raise RecipeError(
        f"episode {episode.key} failed {TRIES} times on {screen.name}",
        where="; ".join(tally.retried[-TRIES:]),
        fix="look at the screen: something lies over the page, or it is too slow",
    )


def _play(screen: Screen, episode: Episode) -> tuple[list[bytes], list[int]]:
    """The screenshots and the scores that they show; the page must agree with the rules on everything."""
    images, scores, score = [], [], START
    screen.open(list(episode.deals), episode.appearance)
    for deal, tap in zip(episode.deals, episode.taps, strict=True):
        images.append(fitted(screen.screenshot(), MOST_TOKENS))
        scores.append(score)
        check_agreement(screen, f"{episode.key}: the page shows", screen.deal(), deal)
        check_agreement(screen, f"{episode.key}: the page's score is", screen.score(), score)
        right = tap == deal.answer
        what = f"{episode.key}: card {tap} of {deal.code} is"
        check_agreement(screen, what, screen.choose(tap), "right" if right else "wrong")
        score += points(right)
        screen.advance()
    return images, scores
