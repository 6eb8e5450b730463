"""The number game's data: prompt, rows, splits."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from recipes.data.hub import load_hub_table
from recipes.data.rows import IMAGE_MARK, Row, Split, make_row
from recipes.errors import RecipeError
from recipes.tasks.number_game.collect import MOST_TOKENS, Round
from recipes.tasks.number_game.pixels import BrokenPNG, as_png, fitted, size

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
        width, height = size(each.image)
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
                **episode.appearance.facts(),
            },
        )


if TYPE_CHECKING:
    import pyarrow as pa

SPLITS = ("train", "test")

REPOSITORY = "yuehua-s/numbergame"
IMAGE_COLUMNS = ("images", "image")


class HubScreens:
    """The set's splits as rows. It states no light and no digits, so labels are taken as they are.

    Screenshots are scaled down to what a prompt has room for, and a picture of the test split is not used for training.

    Attributes:
        source: where the rows come from, for the manifest.
        dropped: for each split rows that were left out: broken_image, no_answer, several_images, duplicate, and in
            train shared_with_test.
    """

    def __init__(self, path: Path | None, revision: str) -> None:
        """Load both splits from the hub, or from a folder with `train*.parquet` and `test*.parquet`."""
        if path is None:
            loaded = {split: load_hub_table(REPOSITORY, split=split, revision=revision) for split in ("train", "test")}
            self._tables = {split: table for split, (table, _) in loaded.items()}
            self.source = f"{REPOSITORY}@{loaded['train'][1]}"
        else:
            self._tables = {split: _read(path, split) for split in ("train", "test")}
            self.source = path.name
        self._columns = {split: _image_column(table, self.source) for split, table in self._tables.items()}
        self.dropped: dict[str, Counter[str]] = {split: Counter() for split in self._tables}

    def splits(self) -> Iterator[Split]:
        """The splits for `prepare`."""
        for split in SPLITS:
            yield Split(split, self._rows(split), {"source": self.source, "dropped": self.dropped[split]})

    def _rows(self, split: str) -> Iterator[Row]:
        """Rows of a split, in the set's order."""
        dropped = self.dropped[split]
        dropped.clear()
        seen: set[bytes] = set()
        taken = {digest for digest, _, _ in self._pictures("test", Counter())} if split == "train" else set()
        index = 0
        for digest, image, answer in self._pictures(split, dropped):
            if digest in taken or digest in seen:
                dropped["shared_with_test" if digest in taken else "duplicate"] += 1
                continue
            seen.add(digest)
            width, height = size(image)
            info = {"split": split, "index": index, "source": "hub", "width": width, "height": height}
            info["solution"] = gold_response(int(answer))
            yield make_row(
                data_source=DATA_SOURCE,
                prompt=PROMPT,
                ground_truth=answer,
                ability=ABILITY,
                images=[image],
                extra_info=info,
            )
            index += 1

    def _pictures(self, split: str, dropped: Counter[str]) -> Iterator[tuple[bytes, bytes, str]]:
        table = self._tables[split]
        pictures, answers = table[self._columns[split]], table["answer"]
        for number in range(table.num_rows):
            answer = str(answers[number].as_py()).strip()
            entry = pictures[number].as_py()
            entries = entry if isinstance(entry, list) else [entry]
            if answer not in ("0", "1", "2"):
                dropped["no_answer"] += 1
            elif len(entries) != 1:
                dropped["several_images"] += 1
            else:
                try:
                    data = (entries[0] or {}).get("bytes") or b""
                    yield hashlib.sha256(data).digest(), fitted(as_png(data), MOST_TOKENS), answer
                except BrokenPNG:
                    dropped["broken_image"] += 1


def _read(path: Path, split: str) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = sorted(path.glob(f"**/{split}*.parquet"))
    if not files:
        raise RecipeError(
            f"{path} has no {split}*.parquet", where="--hub_path", fix="give a folder with the set's files"
        )
    try:
        return pa.concat_tables([pq.read_table(file) for file in files])
    except (OSError, pa.ArrowException) as error:
        raise RecipeError(f"{path} cannot be read: {error}", where="--hub_path", fix="copy the files again") from error


def _image_column(table: pa.Table, source: str) -> str:
    column = next((name for name in IMAGE_COLUMNS if name in table.column_names), None)
    if column is None or "answer" not in table.column_names:
        raise RecipeError(
            f"the set has the columns {', '.join(table.column_names)}",
            where=source,
            fix="use one with images (or image) and answer",
        )
    return column


def problem(row: Row) -> str:
    """Return the deal, which train and test may not share; the row's id where the deal is unknown."""
    return row["extra_info"].get("deal", row["id"])


def counted_by(row: Row) -> dict[str, str]:
    """Return the values by which the manifest counts rows."""
    info, answer = row["extra_info"], row["answer"]
    tables = {"answers": answer, "screens": f"{info['width']}x{info['height']}"}
    return tables | ({"light_and_answer": f"{info['light']} {answer}"} if "deal" in info else {})
