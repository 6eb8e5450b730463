"""The number game's data: prompt, rows, splits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from recipes.data.rows import IMAGE_MARK, Dropped, Row, Split, make_row
from recipes.pictures import open_image
from recipes.tasks.number_game.collect import Round, fitted
from recipes.tasks.prepare import load_table

if TYPE_CHECKING:
    import pyarrow as pa

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
        width, height = open_image(each.image).size
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
                "round": each.index,
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
    held_out = {each[0] for each in _screens(tables["test"][0]) if not isinstance(each, Dropped)}
    for split, (table, source) in tables.items():
        found = _hub_rows(split, table, held_out if split == "train" else set())
        yield Split(split, found, {"source": source})


def _hub_rows(split: str, table: pa.Table, held_out: set[bytes]) -> Iterator[Row | Dropped]:
    seen: set[bytes] = set()
    for screen in _screens(table):
        if isinstance(screen, Dropped):
            yield screen
            continue
        digest, image, answer = screen
        if digest in held_out or digest in seen:
            yield Dropped("shared_with_test" if digest in held_out else "duplicate")
            continue
        width, height = open_image(image).size
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


def _screens(table: pa.Table) -> Iterator[tuple[bytes, bytes, str] | Dropped]:
    """Yield (digest of the original picture, screenshot, answer) of the rows that can be used."""
    for pictures, stated in zip(table["images"], table["answer"], strict=True):
        images, answer = pictures.as_py(), str(stated.as_py()).strip()
        if answer not in ("0", "1", "2"):
            yield Dropped("no_answer")
        elif len(images) != 1:
            yield Dropped("several_images")
        else:
            data = images[0]["bytes"] or b""
            try:
                yield hashlib.sha256(data).digest(), fitted(data), answer
            except ValueError:
                yield Dropped("broken_image")


def problem(row: Row) -> str:
    """The deal, which train and test may not share; the row's id where the deal is unknown."""
    return row["extra_info"].get("deal", row["id"])


def counted_by(row: Row) -> dict[str, str]:
    """The values by which the manifest counts rows."""
    info, answer = row["extra_info"], row["answer"]
    tables = {"answers": answer, "screens": f"{info['width']}x{info['height']}"}
    return tables | ({"light_and_answer": f"{info['light']} {answer}"} if "deal" in info else {})
