"""Episodes: what to play, what was recorded, and a journal on disk that survives any interruption."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError
from recipes.tasks.number_game.deals import balanced
from recipes.tasks.number_game.looks import Look, look_of, various
from recipes.tasks.number_game.pixels import BrokenPNG, decoded
from recipes.tasks.number_game.rules import POSITIONS, Deal, parse_deal
from recipes.tasks.number_game.settings import Settings

RECORD = "episode.json"
# Share of rounds in which the collecting player taps a wrong card, so that scores and rounds on the screen vary.
MISTAKES = 0.25


@dataclass(frozen=True)
class Episode:
    """One game to play: its split, its number there, its rounds, how it looks, and the cards that are tapped."""

    split: str
    number: int
    deals: tuple[Deal, ...]
    look: Look
    taps: tuple[int, ...]

    @property
    def key(self) -> str:
        """Name of its folder in the journal; other rounds or another look give another name."""
        text = json.dumps(self.plan(), sort_keys=True)
        return f"{self.split}-{self.number:04d}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def plan(self) -> dict[str, Any]:
        """All of it as JSON."""
        codes = [deal.code for deal in self.deals]
        return {"split": self.split, "number": self.number, "deals": codes, "taps": self.taps, **vars(self.look)}


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
        look = various(rng, settings.languages, settings.screens, plain=settings.looks == "plain")
        taps = tuple(_tap(deal, rng) for deal in part)
        episodes.append(Episode(split, start // settings.rounds, part, look, taps))
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
        """Those that are not there, or whose pictures are broken; these are moved out of the way and noted."""
        return [episode for episode in episodes if not self._holds(episode)]

    def write(self, episode: Episode, images: Sequence[bytes], scores: Sequence[int], source: str) -> None:
        """Record a finished episode."""
        target = self.folder / episode.key
        draft = self.folder / f".{episode.key}.{os.getpid()}"
        try:
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            for index, image in enumerate(images):
                (draft / f"{index:02d}.png").write_bytes(image)
            record = {**episode.plan(), "scores": list(scores), "source": source}
            (draft / RECORD).write_text(json.dumps(record) + "\n", encoding="utf-8")
            draft.rename(target)
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise RecipeError(
                f"an episode cannot be written: {error}", where=str(self.folder), fix="free space; finished ones stay"
            ) from error

    def rounds(self, episodes: Sequence[Episode]) -> Iterator[Round]:
        """The recorded rounds of these episodes, in order."""
        for episode in episodes:
            folder = self.folder / episode.key
            record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
            for index, score in enumerate(record["scores"]):
                yield Round(episode, index, (folder / f"{index:02d}.png").read_bytes(), score, record["source"])

    def _holds(self, episode: Episode) -> bool:
        folder = self.folder / episode.key
        if not folder.is_dir():
            return False
        try:
            record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
            whole = read_plan(record) == episode
            for index in range(len(episode.deals)):
                decoded((folder / f"{index:02d}.png").read_bytes())
        except (OSError, ValueError, KeyError, BrokenPNG) as error:
            self.broken.append(f"{episode.key}: {error}")
            shutil.rmtree(folder)
            return False
        return whole


def read_plan(record: dict[str, Any]) -> Episode:
    """The episode of a record."""
    deals = tuple(parse_deal(code) for code in record["deals"])
    return Episode(record["split"], record["number"], deals, look_of(record), tuple(record["taps"]))
