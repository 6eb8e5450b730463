"""Screenshots of whole patches, and episodes: planned, played on several screens, and kept so that a run resumes."""

from __future__ import annotations

import hashlib
import io
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from recipes.files import whole_folder
from recipes.tasks.number_game.chromium import ChromiumScreen, Opener, check_agreement, run
from recipes.tasks.number_game.rules import (
    PATCH,
    POSITIONS,
    START,
    Appearance,
    Deal,
    Settings,
    balanced,
    parse_deal,
    points,
)

if TYPE_CHECKING:
    from PIL.Image import Image

SIGNATURE, END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"


class BrokenPNG(Exception):
    """The bytes are no PNG, or not a whole one."""


def decoded(data: bytes) -> Image:
    """The picture of a PNG, decoded to its last pixel.

    Raises:
        BrokenPNG: the bytes are empty, no PNG, cut short or damaged.
    """
    import PIL.Image

    if not data.startswith(SIGNATURE):
        raise BrokenPNG(f"{len(data)} bytes that begin with {data[:8]!r} are no PNG")
    if END not in data[-256:]:  # Pillow accepts pictures whose last bytes are missing
        raise BrokenPNG(f"a PNG of {len(data)} bytes is cut short")
    try:
        picture = PIL.Image.open(io.BytesIO(data), formats=("PNG",))
        picture.load()
    except (OSError, SyntaxError, ValueError) as error:
        raise BrokenPNG(f"a PNG of {len(data)} bytes is broken: {error}") from error
    return picture


def size(data: bytes) -> tuple[int, int]:
    """Width and height from a PNG's header."""
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def as_png(data: bytes) -> bytes:
    """A JPEG, WebP or BMP as PNG; bytes that begin as a PNG are returned unchanged and unchecked.

    Raises:
        BrokenPNG: the picture cannot be read.
    """
    import PIL.Image

    if data.startswith(SIGNATURE):
        return data
    try:
        return _encoded(PIL.Image.open(io.BytesIO(data), formats=("JPEG", "WEBP", "BMP")).convert("RGB"))
    except (OSError, SyntaxError, ValueError) as error:
        raise BrokenPNG(f"{len(data)} bytes are no picture: {error}") from error


def fitted(data: bytes, tokens: int) -> bytes:
    """A PNG whose sides are multiples of 28 and which takes at most `tokens` tokens; unchanged if it is so already.

    A larger screenshot is scaled down; its aspect ratio is kept up to rounding to whole patches.
    """
    import PIL.Image

    picture = decoded(data)
    scale = min(1.0, (tokens * PATCH * PATCH / (picture.width * picture.height)) ** 0.5)
    columns, lines = (max(1, round(side * scale / PATCH)) for side in picture.size)
    while columns * lines > tokens:
        columns, lines = (columns - 1, lines) if columns > lines else (columns, lines - 1)
    target = columns * PATCH, lines * PATCH
    if picture.size == target:
        return data
    return _encoded(picture.convert("RGB").resize(target, PIL.Image.Resampling.LANCZOS))


def _encoded(picture: Image) -> bytes:
    out = io.BytesIO()
    picture.save(out, format="PNG")
    return out.getvalue()


RECORD = "episode.json"
# Share of rounds in which the collecting player taps a wrong card, so that scores and rounds on the screen vary.
MISTAKES = 0.25
MOST_TOKENS = 756  # of a screenshot; with the prompt's text and chat template it stays under max_prompt_length 1024


@dataclass(frozen=True, kw_only=True)
class Episode(Appearance):
    """One game to play: its appearance, its split, its number in the split, and its rounds."""

    split: str
    number: int
    deals: tuple[str, ...]  # the codes of its rounds
    taps: tuple[int, ...] = ()  # the cards that the collecting player taps

    @property
    def rounds(self) -> list[Deal]:
        """The lights and digits of its rounds."""
        return [parse_deal(code) for code in self.deals]

    @property
    def key(self) -> str:
        """Name of its folder in the journal; other rounds or another appearance give another name."""
        text = json.dumps(vars(self), sort_keys=True)
        return f"{self.split}-{self.number:04d}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Round:
    """One screenshot before its choice, with the state that it shows; `index` counts the episode's rounds from 0."""

    episode: Episode
    index: int
    image: bytes
    score: int

    @property
    def deal(self) -> Deal:
        """The light and the digits."""
        return parse_deal(self.episode.deals[self.index])


def planned(split: str, size: int, settings: Settings, *, seed: int) -> list[Episode]:
    """Episodes with `size` rounds in all, balanced over lights and answers; the last one may be shorter."""
    rng = random.Random(f"{seed}/{split}")
    deals = balanced(split, size, rng)
    episodes = []
    for start in range(0, size, settings.rounds):
        part = deals[start : start + settings.rounds]
        appearance = settings.appearance(split, rng)
        codes, taps = tuple(deal.code for deal in part), tuple(_tap(deal, rng) for deal in part)
        episodes.append(
            Episode(**vars(appearance), split=split, number=start // settings.rounds, deals=codes, taps=taps)
        )
    return episodes


def _tap(deal: Deal, rng: random.Random) -> int:
    wrong = [position for position in POSITIONS if position != deal.answer]
    return rng.choice(wrong) if rng.random() < MISTAKES else deal.answer


class Journal:
    """Finished episodes in a folder, one folder each: `00.png`, `01.png`, ... and `episode.json`.

    An episode's folder is written under another name and renamed when it is complete, so it is never partial.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def missing(self, episodes: Sequence[Episode]) -> list[Episode]:
        """The episodes that are not in the folder or have damaged files; `write` replaces the damaged ones."""
        return [episode for episode in episodes if not self._holds(episode)]

    def _holds(self, episode: Episode) -> bool:
        try:
            for each in self.rounds([episode]):
                decoded(each.image)
        except (OSError, ValueError, LookupError, BrokenPNG):
            return False
        return True

    def write(self, episode: Episode, images: Sequence[bytes], scores: Sequence[int]) -> None:
        """Record a finished episode."""
        with whole_folder(self.folder / episode.key) as draft:
            for index, image in enumerate(images):
                (draft / f"{index:02d}.png").write_bytes(image)
            record = {**vars(episode), "scores": list(scores)}
            (draft / RECORD).write_text(json.dumps(record) + "\n", encoding="utf-8")

    def rounds(self, episodes: Sequence[Episode]) -> Iterator[Round]:
        """The recorded rounds of these episodes, in order."""
        for episode in episodes:
            folder = self.folder / episode.key
            record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
            for index in range(len(episode.deals)):
                image = (folder / f"{index:02d}.png").read_bytes()
                yield Round(episode, index, image, record["scores"][index])


class Collected(NamedTuple):
    """Numbers of episodes already in the journal, of episodes played now, and of rounds in the episodes played now."""

    resumed: int
    played: int
    rounds: int


def collect(
    episodes: Sequence[Episode],
    journal: Journal,
    openers: Callable[[], list[Opener]],
    *,
    on_episode: Callable[[int], None],
) -> Collected:
    """Play the episodes that the journal lacks.

    The page must agree with the rules on every round's light, digits and score, and on the verdict on the tapped card.

    Args:
        openers: returns functions that each open a screen; not called where nothing is missing.
        on_episode: called with the number of rounds in the journal at the start, then with those of each new episode.

    Raises:
        RecipeError: the page contradicts a label, or a screen fails. Episodes finished until then are in the journal.
    """
    missing = journal.missing(episodes)
    rounds = sum(len(episode.deals) for episode in missing)
    on_episode(sum(len(episode.deals) for episode in episodes) - rounds)

    def work(screen: ChromiumScreen, episode: Episode) -> None:
        journal.write(episode, *_play(screen, episode))
        on_episode(len(episode.deals))

    if missing:
        run(missing, openers(), work)
    return Collected(len(episodes) - len(missing), len(missing), rounds)


def _play(screen: ChromiumScreen, episode: Episode) -> tuple[list[bytes], list[int]]:
    """The screenshots and the scores that they show; the page must agree with the rules on everything."""
    images, scores, score = [], [], START
    screen.open(episode.rounds, episode)
    for deal, tap in zip(episode.rounds, episode.taps, strict=True):
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
