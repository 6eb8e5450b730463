"""The questions of an evaluation: rows of a parquet file, with images where the task has them."""

import base64
import io
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from recipes.data.rows import IMAGE_MARK, find_manifest, pictures_mistake, read_rows
from recipes.engines.columns import chat_of
from recipes.errors import RecipeError
from recipes.pictures import opened_by_datasets, trained
from recipes.responses.measures import question_key
from recipes.rewards.easyr1 import unwrapped

OPTIONAL = ("reward_model", "data_source", "extra_info", "id")
IMAGE_ROWS_AT_ONCE = 16


class RowFormat(NamedTuple):
    """Columns that the trainer's engine reads: verl chat messages and the truth beside them, EasyR1 two of its own."""

    prompt: str = "prompt"  # column of the chat messages, or of a text, which is one message of the user
    answer: str = ""  # EasyR1's column of the ground truth; empty for verl
    template: str = ""  # EasyR1's `format_prompt` around the text
    images: str = "images"  # column of the pictures, `data.image_key`
    image_dir: str = "."  # where EasyR1 begins their paths
    videos: str = "videos"  # column of videos, `data.video_key`, which is to be empty

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that a file must have."""
        return (self.prompt, self.answer) if self.answer else (self.prompt, "reward_model", "data_source")


VERL_ROWS = RowFormat()


@dataclass(frozen=True)
class Question:
    row: int  # number of the row in the data file
    prompt: list[dict[str, str]]  # chat messages; `<image>` stands where an image belongs
    gold: Any  # the ground truth as it is stored, which the engine hands to the reward
    data_source: str
    extra_info: dict[str, Any] = field(default_factory=dict)
    image_count: int = 0  # number of images in the prompt
    images: tuple[bytes, ...] = ()  # their encoded bytes after `with_images`
    read: RowFormat = VERL_ROWS  # where and how they stand in the file
    id: str = ""  # the column `id`; empty if there is no such column

    @property
    def ground_truth(self) -> str:
        """The ground truth as a person reads it, without the data source that EasyR1's column may hold too."""
        return str(unwrapped(self.gold)[1])

    @property
    def key(self) -> tuple[str, ...]:
        """A key that rows with the same question share; rows with images and without an id all differ."""
        return question_key(self.text, self.ground_truth, self.id or str(self.row), self.image_count > 0)

    @property
    def text(self) -> str:
        """The prompt as a person reads it; a single message is shown without its role."""
        if len(self.prompt) == 1:
            return self.prompt[0]["content"]
        return "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in self.prompt)


def load_questions(path: Path, limit: int | None = None, read: RowFormat = VERL_ROWS) -> list[Question]:
    """The rows of a parquet file, or its first `limit`. Images stay in the file until `with_images` reads them.

    Raises RecipeError where the file is not parquet, lacks a column, is empty, or has a row without a gold answer.
    """
    file = _open(path, read.needed)
    if file.metadata.num_rows == 0:
        raise RecipeError("the data set is empty", where=str(path), fix="prepare the data again")
    if mistake := pictures_mistake(path, read.images, read.videos):
        raise RecipeError(mistake[0], where="--data", fix=mistake[1])
    there = file.schema_arrow.names
    columns = [name for name in dict.fromkeys((*read.needed, *OPTIONAL)) if name in there]
    records = islice(read_rows(path, columns), limit)
    has_images = read.images in there
    return [_question(path, row, record, read, has_images=has_images) for row, record in enumerate(records)]


def with_images(path: Path, questions: Iterable[Question]) -> Iterator[Question]:
    """The questions with their images, read from the file a few rows at a time; `questions` are in the file's order."""
    waiting = {question.row: question for question in questions}
    read = next((question.read for question in waiting.values()), VERL_ROWS)
    if not waiting or not has_images(path, read.images):
        yield from waiting.values()
        return
    engine, by_datasets = "easyr1" if read.answer else "verl", opened_by_datasets(path, read.images)
    for row, record in enumerate(islice(read_rows(path, [read.images], IMAGE_ROWS_AT_ONCE), max(waiting) + 1)):
        if row not in waiting:
            continue
        question, held = waiting[row], record[read.images] or ()
        try:
            if len(held) != question.image_count:
                raise ValueError(f"the prompt has {question.image_count} {IMAGE_MARK} and the row {len(held)} images")
            images = [trained(each, engine, read.image_dir, by_datasets=by_datasets) for each in held]
        except ValueError as error:
            fix = f"give the row one image for each {IMAGE_MARK}, as training takes it"
            raise RecipeError(f"its images cannot be shown: {error}", where=f"{path}, row {row}", fix=fix) from error
        yield replace(question, images=tuple(images))


def _open(path: Path, needed: Iterable[str] = ()) -> Any:
    """The pyarrow ParquetFile of a path."""
    fix = "use a file that a data_prep script wrote"
    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise RecipeError(f"{path} is not a parquet file: {error}", where="--data", fix=fix) from error
    if missing := [name for name in needed if name not in file.schema_arrow.names]:
        raise RecipeError(f"{path} has no column {missing[0]}", where="--data", fix=fix)
    return file


def _question(path: Path, row: int, record: dict[str, Any], read: RowFormat, *, has_images: bool) -> Question:
    gold = record[read.answer] if read.answer else (record["reward_model"] or {}).get("ground_truth")
    source, truth = unwrapped(gold) if read.answer else ("", gold)
    if truth is None:
        fix = "prepare the data again; an empty text stands where the reward needs no gold answer"
        raise RecipeError("the row has no gold answer", where=f"{path}, row {row}", fix=fix)
    chat = chat_of(record[read.prompt], read.template)
    messages = [{"role": message["role"], "content": message["content"]} for message in chat]
    images = sum(message["content"].count(IMAGE_MARK) for message in messages) if has_images else 0
    data_source, name = record.get("data_source") or source, str(record.get("id") or "")
    extra = record.get("extra_info") or {}
    return Question(row, messages, gold, data_source, extra, images, read=read, id=name)


def outside_pictures(path: Path, read: RowFormat) -> dict[str, list[int]]:
    """Each file that the rows name as a picture, with its bytes and its time of change in nanoseconds."""
    found = {}
    schema = _open(path).schema_arrow
    named = read.images in schema.names and "string" in str(schema.field(read.images).type)
    for record in read_rows(path, [read.images], IMAGE_ROWS_AT_ONCE) if named else ():
        for image in record[read.images] or ():
            for name in image.values() if isinstance(image, dict) else [image]:
                file = os.path.join(read.image_dir, name.removeprefix("file://")) if isinstance(name, str) else ""
                if os.path.isfile(file):
                    found[file] = [os.stat(file).st_size, os.stat(file).st_mtime_ns]
    return found


def has_images(path: Path, column: str) -> bool:
    """Return whether the rows of a file may have images in a column."""
    return column in _open(path).schema_arrow.names


def described(path: Path) -> dict[str, Any]:
    """A data file's path, the number of its rows, and the user's files that it was made from; "" for other data."""
    manifest = find_manifest(path)
    made_from = manifest.source if manifest and manifest.task == "custom" else ""
    return {"path": str(path), "rows": _open(path).metadata.num_rows, "made_from": made_from}


def data_url(image: bytes) -> str:
    """An encoded image as a `data:` URL."""
    from PIL import Image

    kind = Image.open(io.BytesIO(image)).get_format_mimetype()
    return f"data:{kind};base64,{base64.b64encode(image).decode()}"
