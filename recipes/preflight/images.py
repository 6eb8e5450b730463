"""Images of the data: broken ones, places for them in the prompts, and room for their tokens."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from recipes.config import PathKey, Recipe
from recipes.data.rows import IMAGE_MARK, prompt_column
from recipes.errors import RecipeError
from recipes.model_files import local_model
from recipes.preflight import data_files
from recipes.preflight.child import ChildError, ask
from recipes.preflight.image_tokens import Answer, Kind, Question, Size

ROWS_AT_ONCE = 64
MOST_DECODED = 256
"""So many images of a format without checksums are decoded, the first of each file; of PNG every chunk is checked."""
COUNTING_LIMIT_S = 3600.0
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


@dataclass
class AlikeRows:
    """The rows of one kind in a file: the number of the first, counted from 0, and how many there are."""

    first: int
    count: int = 0


class BadRow(Exception):
    """A mistake in a row, with its remedy."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.fix = fix


def check_images(recipe: Recipe) -> list[str]:
    """Raise for rows whose images cannot be used, and where the prompts have no room for them."""
    limit, image_key = recipe.worker.rollout.limit_images, recipe.data.image_key
    scans = {
        key: scan(
            Path(key.path),
            prompt_column(recipe),
            image_key,
            limit=limit,
            image_dir=recipe.data.image_dir,
            wrap=_prompt_format(recipe),
        )
        for key in data_files.files(recipe)
        if limit or image_key in data_files.columns(key)
    }
    if not any(kind.sizes for kinds in scans.values() for kind in kinds):
        return []
    model, remarks = _model(recipe)
    if model is None:
        return remarks
    answers = {key: _count_tokens(recipe, list(kinds), model) for key, kinds in scans.items()}
    if not all(answer.tokens for answer in answers.values()):
        return [f"the processor of {model} does not tell an image's tokens: whether prompts have room is not known"]
    fitting: Counter[str] = Counter()  # split -> rows of all its files that are short enough
    for key, kinds in scans.items():
        for tokens, rows in zip(answers[key].tokens, kinds.values(), strict=True):
            fitting[key.key] += rows.count * (tokens <= recipe.data.max_prompt_length)
    for key, kinds in scans.items():
        remarks += _check_room(recipe, key, kinds, answers[key], fitting[key.key])
    return remarks


def scan(
    file: Path,
    prompt_key: str,
    image_key: str,
    *,
    limit: int,
    image_dir: str | None = None,
    wrap: Callable[[str], str] = str,
) -> dict[Kind, AlikeRows]:
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
    kinds: dict[Kind, AlikeRows] = {}
    wrong: list[tuple[int, BadRow]] = []
    reader = ImageReader(Path(image_dir or "."))
    for number, row in enumerate(_rows(file, (prompt_key, image_key))):
        prompt = row.get(prompt_key)
        messages = [{"role": "user", "content": wrap(prompt)}] if isinstance(prompt, str) else prompt or []
        try:
            kind = _kind(messages, row.get(image_key) or [], limit, reader)
        except BadRow as error:
            wrong.append((number, error))
        else:
            kinds.setdefault(kind, AlikeRows(number)).count += 1
    if wrong:
        number, first = wrong[0]
        more = f"; {len(wrong) - 1:,} more rows are wrong" if len(wrong) > 1 else ""
        raise RecipeError(f"row {number} {first}{more}", where=f"{file}, rows counted from 0", fix=first.fix) from first
    return kinds


def _rows(file: Path, wanted: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as opened:
        columns = [name for name in wanted if name in opened.schema_arrow.names]
        for batch in opened.iter_batches(batch_size=ROWS_AT_ONCE, columns=columns):
            yield from batch.to_pylist()


def _kind(messages: list[dict[str, Any]], images: list[Any], limit: int, reader: ImageReader) -> Kind:
    texts = [message.get("content") for message in messages]
    places = sum(text.count(IMAGE_MARK) for text in texts if isinstance(text, str))
    have = _counted(len(images), "image")
    if places != len(images):
        raise BadRow(
            f"has {_counted(places, 'place', f' {IMAGE_MARK}')} in its prompt and {have}",
            f"write one {IMAGE_MARK} into the prompt for each image; see make_row in recipes/data/rows.py",
        )
    if len(images) > limit:
        raise BadRow(
            f"has {have}, and worker.rollout.limit_images is {limit}",
            f"set worker.rollout.limit_images={len(images)}, or take images out",
        )
    sizes = tuple(reader.size(image, number) for number, image in enumerate(images))
    return Kind(json.dumps(messages, sort_keys=True), sizes)


def _counted(count: int, noun: str, rest: str = "") -> str:
    return f"{count or 'no'} {noun}{'s' * (count != 1)}{rest}"


class ImageReader:
    """Opens the images of one file.

    Args:
        folder: paths of images are relative to it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._decoded = folder, 0

    def size(self, image: Any, number: int) -> Size:
        """Width and height from the header, with the whole checked as far as its format allows without decoding.

        Args:
            image: bytes, a path, or a dict with one of them, as both engines read it.
            number: of the image in its row, for the message.
        """
        from PIL import Image

        if isinstance(image, dict):
            image = image.get("bytes") or image.get("image") or image.get("path")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)
                if not isinstance(image, bytes | str):
                    raise ValueError("neither bytes nor a path")
                stream = BytesIO(image) if isinstance(image, bytes) else self._folder / image.removeprefix("file://")
                picture = Image.open(stream)
                size = picture.size
                if picture.format == "PNG":
                    picture.verify()
                elif self._decoded < MOST_DECODED:
                    self._decoded += 1
                    picture.load()
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            reason = str(error).partition(" <_io.BytesIO")[0]
            raise BadRow(
                f"has a broken image (number {number}): {reason}", "make the image again, or leave the row out"
            ) from error
        return size


def _prompt_format(recipe: Recipe) -> Callable[[str], str]:
    """Return what EasyR1 makes of a prompt: its `format_prompt`, with the prompt as `content`."""
    if not recipe.data.format_prompt:
        return str
    from jinja2 import Template

    template = Template(Path(recipe.data.format_prompt).read_text(encoding="utf-8").strip())
    return lambda prompt: template.render(content=prompt)


def _model(recipe: Recipe) -> tuple[Path | None, list[str]]:
    """The folder of a model with a processor; None, with a remark, for one that is still on the hub."""
    name = recipe.worker.actor.model.model_path or ""
    folder = local_model(name)
    if folder is not None and any((folder / file).is_file() for file in PROCESSOR_FILES):
        return folder, []
    if folder is None or not Path(name).is_dir():
        return None, [f"{name} is not here yet: whether prompts have room for their images is not known"]
    raise recipe.error(
        f"the rows have images, and {folder} has no processor for images ({PROCESSOR_FILES[0]})",
        "set MODEL_PATH to a vision-language model",
        "worker.actor.model.model_path",
    )


def _count_tokens(recipe: Recipe, kinds: list[Kind], model: Path) -> Answer:
    """The tokens of every kind, counted in a process of its own."""
    question = Question(
        model=str(model),
        trust_remote_code=recipe.worker.actor.model.trust_remote_code,
        engine=recipe.engine,
        low=recipe.data.min_pixels,
        high=recipe.data.max_pixels,
        limit=recipe.data.max_prompt_length,
        kinds=kinds,
    )
    try:
        return ask("recipes.preflight.image_tokens", question, Answer, COUNTING_LIMIT_S)
    except (ChildError, TimeoutError) as error:
        why = str(error) if isinstance(error, ChildError) else f"it took more than {COUNTING_LIMIT_S:.0f} s"
        raise RecipeError(
            f"the image tokens of {len(kinds):,} prompts cannot be counted: {why}",
            where=str(model),
            fix="is the model a whole vision-language model? is an image 200 times as long as wide?",
        ) from error


def _check_room(recipe: Recipe, key: PathKey, kinds: dict[Kind, AlikeRows], answer: Answer, left: int) -> list[str]:
    """Raise where prompts of a file do not fit and too few are left of its split; a remark where enough are.

    Args:
        key: the file.
        kinds: its rows.
        answer: their tokens.
        left: rows of all files of the split that fit.
    """
    limit = recipe.data.max_prompt_length
    rows = list(kinds.values())
    long = sum(alike.count for alike, tokens in zip(rows, answer.tokens, strict=True) if tokens > limit)
    if not long:
        return []
    longest, most = answer.longest, answer.tokens[answer.longest]
    images = ", ".join(f"an image of {width} x {height}" for width, height in list(kinds)[longest].sizes)
    what = (
        f"{long:,} of {sum(alike.count for alike in rows):,} prompts are longer than data.max_prompt_length {limit}: "
        f"row {rows[longest].first} has {images or 'no image'}, {most:,} tokens with its text"
    )
    fix = f"set {' or '.join(filter(None, (f'MAX_PROMPT_LENGTH={most}', answer.bound)))}"
    needed = recipe.data.rollout_batch_size if key.key == "data.train_files" else 1
    if recipe.data.filter_overlong_prompts and left >= needed:
        return [f"{key.path}: {what}. They are dropped. To keep them, {fix}"]
    keys = (key.key, "data.max_prompt_length", "data.min_pixels", "data.max_pixels")
    raise recipe.error(f"{key.path}: {what}", fix, *keys)
