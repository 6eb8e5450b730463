"""Rows with images: each image can be read, stands where the prompt says, and is one of as many as are allowed."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from recipes.errors import RecipeError
from recipes.tasks.rows import IMAGE_MARK

ROWS_AT_ONCE = 64
DECODED = 256
"""So many images of a format without checksums are decoded, the first of each file; of PNG every chunk is checked."""

Size = tuple[int, int]  # width, height


class Kind(NamedTuple):
    """What decides how many tokens a prompt has: its messages, as JSON, and the sizes of its images."""

    messages: str
    sizes: tuple[Size, ...]


@dataclass
class Scan:
    """The rows of one file: how many there are of each kind, and the first row of each."""

    counts: dict[Kind, int] = field(default_factory=dict)
    first: dict[Kind, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(self.counts.values())

    @property
    def sizes(self) -> set[Size]:
        return {size for kind in self.counts for size in kind.sizes}


class _BadRow(Exception):
    """What is wrong with a row, and what to do about it."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.fix = fix


def scan(
    file: Path,
    prompt_key: str,
    image_key: str,
    *,
    limit: int,
    image_dir: str | None = None,
    wrap: Callable[[str], str] = str,
) -> Scan:
    """Read every row of a parquet file, a few at a time, and the header and checksums of every image.

    Args:
        file: with a column `prompt_key`, of chat messages or text.
        image_key: column of the images; a file without it has rows without images.
        limit: images that a prompt may hold.
        image_dir: folder that paths of images are relative to.
        wrap: what becomes of a prompt that is text.

    Raises:
        RecipeError: the first row with a broken image, images and places for them that do not match, or too many
            images; and how many more rows are wrong.
    """
    found = Scan()
    wrong: list[tuple[int, _BadRow]] = []
    check = _Images(image_dir)
    for number, row in enumerate(_rows(file, (prompt_key, image_key))):
        prompt = row.get(prompt_key)
        messages = [{"role": "user", "content": wrap(prompt)}] if isinstance(prompt, str) else prompt or []
        try:
            kind = _kind(messages, row.get(image_key) or [], limit, check)
        except _BadRow as error:
            wrong.append((number, error))
            continue
        found.counts[kind] = found.counts.get(kind, 0) + 1
        found.first.setdefault(kind, number)
    if wrong:
        number, error = wrong[0]
        more = f"; {len(wrong) - 1:,} more rows are wrong" if len(wrong) > 1 else ""
        raise RecipeError(f"row {number} {error}{more}", where=f"{file}, rows counted from 0", fix=error.fix) from error
    return found


def _rows(file: Path, wanted: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    opened = pq.ParquetFile(file)
    columns = [name for name in wanted if name in opened.schema_arrow.names]
    for batch in opened.iter_batches(batch_size=ROWS_AT_ONCE, columns=columns):
        yield from batch.to_pylist()


def _kind(messages: list[dict[str, Any]], images: list[Any], limit: int, check: _Images) -> Kind:
    texts = [message.get("content") for message in messages]
    places = sum(text.count(IMAGE_MARK) for text in texts if isinstance(text, str))
    if places != len(images):
        raise _BadRow(
            f"has {_number(places, f'place {IMAGE_MARK}', f'places {IMAGE_MARK}')} in its prompt "
            f"and {_number(len(images), 'image', 'images')}",
            f"write one {IMAGE_MARK} into the prompt for each image; recipes.tasks.rows.make_row checks it",
        )
    if len(images) > limit:
        raise _BadRow(
            f"has {_number(len(images), 'image', 'images')}, and worker.rollout.limit_images is {limit}",
            f"set worker.rollout.limit_images={len(images)}, or take images out",
        )
    sizes = tuple(check.size(image, place) for place, image in enumerate(images))
    return Kind(json.dumps(messages, sort_keys=True), sizes)


class _Images:
    """Opens the images of one file."""

    def __init__(self, image_dir: str | None) -> None:
        self._folder = Path(image_dir or ".")
        self._decoded = 0

    def size(self, image: Any, place: int) -> Size:
        """Width and height from the header, with the whole checked as far as its format allows without decoding."""
        from PIL import Image

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)
                picture = Image.open(self._stream(image))
                size = picture.size
                if picture.format == "PNG":
                    picture.verify()
                elif self._decoded < DECODED:
                    self._decoded += 1
                    picture.load()
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            reason = str(error).replace("<_io.BytesIO object at", "<bytes at")
            raise _BadRow(
                f"has a broken image (number {place}): {reason.split(' <bytes')[0]}",
                "make the image again, or leave the row out",
            ) from error
        return size

    def _stream(self, image: Any) -> BytesIO | Path:
        """The bytes or the file behind an entry, in the forms that both engines read."""
        if isinstance(image, dict):
            image = image.get("bytes") or image.get("image") or image.get("path")
        if isinstance(image, bytes):
            return BytesIO(image)
        if isinstance(image, str):
            return self._folder / image.removeprefix("file://")
        raise ValueError("neither bytes nor a path")


def _number(count: int, one: str, many: str) -> str:
    return f"{count or 'no'} {one if count == 1 else many}"
