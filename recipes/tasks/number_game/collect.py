"""The number game's data: episodes that are planned, played and kept so that a run resumes, and their rows."""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from PIL.Image import Image, Resampling

from recipes import pictures
from recipes.data.rows import IMAGE_MARK, Row, Split, make_row
from recipes.files import whole_folder
from recipes.tasks.number_game import rules
from recipes.tasks.number_game.chromium import ChromiumScreen, check_agreement, run
from recipes.tasks.prepare import load_table

RECORD = "episode.json"
# Share of rounds in which the collecting player taps a wrong card, so that scores and rounds on the screen vary.
MISTAKES = 0.25
MOST_TOKENS = 756  # of a screenshot; with the prompt's text and chat template it stays under max_prompt_length 1024


def decoded(data: bytes) -> Image:
    """The picture of an encoded file, decoded to its last pixel. Raises ValueError where it is none or lacks pixels."""
    picture: Image = pictures.open_image(data)
    try:
        picture.load()
    except (OSError, SyntaxError) as error:
        raise ValueError(str(error)) from error
    return picture


def fitted(data: bytes) -> bytes:
    """A picture as a PNG of whole patches and at most `MOST_TOKENS`, scaled down if need be; such a PNG unchanged."""
    picture = decoded(data)
    scale = min(1.0, (MOST_TOKENS * rules.PATCH * rules.PATCH / (picture.width * picture.height)) ** 0.5)
    columns, lines = (max(1, round(side * scale / rules.PATCH)) for side in picture.size)
    while columns * lines > MOST_TOKENS:
        columns, lines = (columns - 1, lines) if columns > lines else (columns, lines - 1)
    target = columns * rules.PATCH, lines * rules.PATCH
    if picture.size == target and picture.format == "PNG":
        return data
    return pictures.encoded(picture.convert("RGB").resize(target, Resampling.LANCZOS))


@dataclass(frozen=True, kw_only=True)
class Episode(rules.Appearance):
    """One game to play: its appearance, its split, its number in the split, and its rounds."""

    split: str
    number: int
    deals: tuple[str, ...]  # the codes of its rounds
    taps: tuple[int, ...] = ()  # the cards that the collecting player taps

    @property
    def rounds(self) -> list[rules.Deal]:
        """The lights and digits of its rounds."""
        return [rules.parse_deal(code) for code in self.deals]

    @property
    def key(self) -> str:
        """Name of its folder in the journal; other rounds or another appearance give another name."""
        text = json.dumps(vars(self), sort_keys=True)
        return f"{self.split}-{self.number:04d}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


class Round(NamedTuple):
    """A screenshot before its choice, with the state that it shows; `number` counts the episode's rounds from 0."""

    episode: Episode
    number: int
    deal: rules.Deal
    image: bytes
    score: int


def planned(split: str, size: int, settings: rules.Settings, *, seed: int) -> list[Episode]:
    """Episodes with `size` rounds in all, balanced over lights and answers; the last one may be shorter."""
    rng = random.Random(f"{seed}/{split}")
    deals = rules.balanced(split, size, rng)
    episodes = []
    for start in range(0, size, settings.rounds):
        part = deals[start : start + settings.rounds]
        appearance = settings.appearance(split, rng)
        codes, taps = tuple(deal.code for deal in part), list[int]()
        for deal in part:
            wrong = [position for position in rules.POSITIONS if position != deal.answer]
            taps.append(rng.choice(wrong) if rng.random() < MISTAKES else deal.answer)
        number = start // settings.rounds
        episodes.append(Episode(**vars(appearance), split=split, number=number, deals=codes, taps=tuple(taps)))
    return episodes


class Journal:
    """Finished episodes in a folder, a whole folder each: `00.png`, `01.png`, ... and `episode.json`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def missing(self, episodes: Sequence[Episode]) -> list[Episode]:
        """The episodes that are not in the folder or have damaged files; `write` replaces the damaged ones."""
        found = []
        for episode in episodes:
            try:
                for each in self.rounds([episode]):
                    decoded(each.image)
            except (OSError, ValueError, LookupError):
                found.append(episode)
        return found

    def write(self, episode: Episode, images: Sequence[bytes], scores: Sequence[int]) -> None:
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
            for number, deal in enumerate(episode.rounds):
                image = (folder / f"{number:02d}.png").read_bytes()
                yield Round(episode, number, deal, image, record["scores"][number])


def collect(
    episodes: Sequence[Episode],
    journal: Journal,
    workers: int,
    *,
    on_episode: Callable[[int], None],
    opened: Callable[[str], ChromiumScreen] = ChromiumScreen,
) -> list[Episode]:
    """Play the episodes that the journal lacks on `workers` screens, and return them; finished ones are kept.

    `on_episode` is called with the number of rounds in the journal at the start, then with those of each new episode.
    """
    missing = journal.missing(episodes)
    on_episode(sum(len(episode.deals) for episode in episodes) - sum(len(episode.deals) for episode in missing))

    def work(screen: ChromiumScreen, episode: Episode) -> None:
        images, scores = list[bytes](), list[int]()

        def tap(deal: rules.Deal, image: bytes, score: int) -> int:
            images.append(image)
            scores.append(score)
            return episode.taps[len(images) - 1]

        play_rounds(screen, episode, tap)
        journal.write(episode, images, scores)
        on_episode(len(episode.deals))

    run(missing, work, workers, opened)
    return missing


def play_rounds(screen: ChromiumScreen, episode: Episode, tap: Callable[[rules.Deal, bytes, int], int]) -> int:
    """Play an episode and return its final score.

    `tap` chooses a card, given a round's deal, its screenshot and the score that it shows. Raises RecipeError where the
    page contradicts the rules on a round's light, digits, score or verdict.
    """
    score = rules.START
    screen.open(episode.rounds, episode)
    for deal in episode.rounds:
        check_agreement(screen, f"{episode.key}: the page shows", screen.deal(), deal)
        check_agreement(screen, f"{episode.key}: the page's score is", screen.score(), score)
        card = tap(deal, fitted(screen.screenshot()), score)
        right = card == deal.answer
        what = f"{episode.key}: card {card} of {deal.code} is"
        check_agreement(screen, what, screen.choose(card), "right" if right else "wrong")
        score += rules.points(right)
        screen.advance()
    check_agreement(screen, f"{episode.key}: the page's final score is", screen.score(), score)
    return score


DATA_SOURCE = "number_game"
ABILITY = "vision"
QUESTION = (
    "This is a screen of the number game. One lamp of the traffic light is lit, and three cards show different digits. "
    "Green asks for the largest digit, red for the smallest, yellow for the one in between. "
    "Which card is right? The left card is 0, the middle card 1, the right card 2. "
    "Think briefly if you need to, and end with `Answer: ` and the number of the card."
)
PROMPT = IMAGE_MARK + QUESTION


def gold_response(answer: int) -> str:
    """A response that earns full marks."""
    return f"Answer: {answer}"


def rows(rounds: Iterable[Round], split: str) -> Iterator[Row]:
    """One row for each round; `extra_info` has its state, its appearance and its place in its episode."""
    for index, each in enumerate(rounds):
        deal, episode = each.deal, each.episode
        width, height = pictures.open_image(each.image).size
        yield make_row(
            data_source=DATA_SOURCE,
            prompt=PROMPT,
            ground_truth=str(deal.answer),
            ability=ABILITY,
            images=[each.image],
            extra_info={
                "split": split,
                "index": index,
                "deal": deal.code,
                "light": deal.light,
                "digits": list(deal.digits),
                "answer": deal.answer,
                "solution": gold_response(deal.answer),
                "score": each.score,
                "episode": episode.number,
                "round": each.number,
                "rounds": len(episode.deals),
                "source": "browser",
                "width": width,
                "height": height,
                **episode.facts(),
            },
        )


SPLITS = ("train", "test")
REPOSITORY = "yuehua-s/numbergame"


def from_hub(path: Path | None, revision: str) -> Iterator[Split]:
    """Splits of the hub's set, or of a folder with `train*.parquet` and `test*.parquet`, for `prepare`.

    The set states no light and no digits, so its labels are not checked. Rows that cannot be used are dropped and
    counted, as are duplicates and training rows whose picture is also in the test split.
    """
    tables = {}
    for split in SPLITS:
        files = None if path is None else sorted(path.glob(f"**/{split}*.parquet")) or [path / f"{split}.parquet"]
        tables[split] = load_table(REPOSITORY, ("images", "answer"), split=split, revision=revision, files=files)
    held_out = {digest for digest, *_ in _screens(tables["test"][0], Counter())}
    for split, (table, source) in tables.items():
        dropped = Counter[str]()
        found = _hub_rows(split, table, held_out if split == "train" else set(), dropped)
        yield Split(split, found, {"source": source, "dropped": dropped})


def _hub_rows(split: str, table: pa.Table, held_out: set[bytes], dropped: Counter[str]) -> Iterator[Row]:
    seen: set[bytes] = set()
    for digest, image, answer in _screens(table, dropped):
        if digest in held_out or digest in seen:
            dropped["shared_with_test" if digest in held_out else "duplicate"] += 1
            continue
        width, height = pictures.open_image(image).size
        info = {"split": split, "index": len(seen), "source": "hub", "width": width, "height": height}
        seen.add(digest)
        yield make_row(
            data_source=DATA_SOURCE,
            prompt=PROMPT,
            ground_truth=answer,
            ability=ABILITY,
            images=[image],
            extra_info=info | {"solution": gold_response(int(answer))},
        )


def _screens(table: pa.Table, dropped: Counter[str]) -> Iterator[tuple[bytes, bytes, str]]:
    """Yield (digest of the original picture, screenshot, answer) of the rows that can be used; count the others."""
    for shown, stated in zip(table["images"], table["answer"], strict=True):
        images, answer = shown.as_py(), str(stated.as_py()).strip()
        if answer not in ("0", "1", "2"):
            dropped["no_answer"] += 1
        elif len(images) != 1:
            dropped["several_images"] += 1
        else:
            data = images[0]["bytes"] or b""
            try:
                yield hashlib.sha256(data).digest(), fitted(data), answer
            except ValueError:
                dropped["broken_image"] += 1


def problem(row: Row) -> str:
    """The deal, which train and test may not share; the row's id where the deal is unknown."""
    return row["extra_info"].get("deal", row["id"])


def counted_by(row: Row) -> dict[str, str]:
    """The values by which the manifest counts rows."""
    info, answer = row["extra_info"], row["answer"]
    tables = {"answers": answer, "screens": f"{info['width']}x{info['height']}"}
    return tables | ({"light_and_answer": f"{info['light']} {answer}"} if "deal" in info else {})
