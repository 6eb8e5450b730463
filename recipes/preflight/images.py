"""Checks of the data's images: broken ones, places for them in the prompts, and room for their tokens.

Every image is opened; the model's own processor counts the tokens of the largest row and of the smallest.
"""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from recipes.config import PathKey, Recipe
from recipes.data.rows import IMAGE_MARK, chat_of, prompt_column, prompt_template, read_rows, structured
from recipes.errors import RecipeError, counted
from recipes.model_files import PROCESSORS, local_model
from recipes.preflight import data_files
from recipes.preflight.child import ask

ROWS_AT_ONCE = 64
MOST_DECODED = 256
"""Rows of each file whose images are decoded; in all further rows image headers are read and checksums verified."""
COUNTING_LIMIT_S = 600.0


class Row(NamedTuple):
    """A row with images: its number, counted from 0, its messages, its images, and its size in tokens, roughly."""

    number: int
    messages: list[dict[str, Any]]
    images: list[Any]
    size: float


def check_images(recipe: Recipe) -> list[str]:
    """Raise for rows whose images cannot be used, and where the prompts have no room for them."""
    limit, image_key = recipe.worker.rollout.limit_images, recipe.data.image_key
    files = [key for key in data_files.files(recipe) if limit or image_key in data_files.columns(key)]
    chosen = {key: rows for key in files if (rows := scan(recipe, Path(key.path)))}
    if not chosen:
        return []
    name = recipe.worker.actor.model.model_path or ""
    folder = local_model(name)
    if folder is None or not any((folder / file).is_file() for file in PROCESSORS):
        if not Path(name).is_dir():  # the hub's cache has none or only a part of the model
            return [f"{name} is not here yet: whether prompts have room for their images is not known"]
        raise recipe.error(
            f"the rows have images, and {name} has no processor for images ({PROCESSORS[0]})",
            "set MODEL_PATH to a vision-language model",
            "worker.actor.model.model_path",
        )
    return [remark for key, rows in chosen.items() for remark in _check_room(recipe, key, rows, folder)]


def scan(recipe: Recipe, file: Path) -> list[Row]:
    """Read every row of a parquet file, a few at a time, and open every image.

    Returns:
        The largest row and the smallest; none where no row has images.

    Raises:
        RecipeError: a row has a broken image, too many images, or another number of images than `<image>` marks; the
            error names the first such row.
    """
    from PIL import Image

    prompt_key, image_key, template = prompt_column(recipe), recipe.data.image_key, prompt_template(recipe)
    limit, found = recipe.worker.rollout.limit_images, list[Row]()
    for number, row in enumerate(read_rows(str(file), (prompt_key, image_key), ROWS_AT_ONCE)):
        messages, images = chat_of(row.get(prompt_key), template), row.get(image_key) or []
        places = sum(str(message.get("content")).count(IMAGE_MARK) for message in messages)
        where = f"{file}, row {number}, counted from 0"
        if places != len(images) or len(images) > limit:
            raise RecipeError(
                f"row {number} has {counted(places, 'place')} {IMAGE_MARK} in its prompt and "
                f"{counted(len(images), 'image')}, and worker.rollout.limit_images is {limit}",
                where=where,
                fix=f"write one {IMAGE_MARK} into the prompt for each image, and set limit_images to the most of them",
            )
        try:
            pixels = sum(_pixels(recipe, image, decode=number < MOST_DECODED) for image in images)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            reason = str(error).partition(" <_io.BytesIO")[0]
            raise RecipeError(
                f"row {number} has a broken image: {reason}", where=where, fix="make it again, or leave the row out"
            ) from error
        if images:
            found.append(Row(number, messages, images, pixels / 784 + len(json.dumps(messages, default=str)) / 4))
            found = [max(found, key=lambda one: one.size), min(found, key=lambda one: one.size)]
    return found


def _pixels(recipe: Recipe, image: Any, decode: bool) -> int:
    """Pixels of an image, clamped to the recipe's bounds; the image is decoded, or its checksums are verified."""
    picture = opened(image, recipe.data.image_dir)
    pixels = picture.width * picture.height
    if decode:
        picture.load()
    else:
        picture.verify()
    return max(recipe.data.min_pixels or 0, min(pixels, recipe.data.max_pixels or pixels))


def opened(image: Any, folder: str | None) -> Any:
    """A PIL image from bytes, a path, or a dict with one of them, as both engines read it."""
    from PIL import Image

    if isinstance(image, dict):
        image = image.get("bytes") or image.get("image") or image.get("path")
    if not isinstance(image, bytes | str):
        raise ValueError("neither bytes nor a path")
    return Image.open(
        BytesIO(image) if isinstance(image, bytes) else Path(folder or ".") / image.removeprefix("file://")
    )


def _check_room(recipe: Recipe, key: PathKey, rows: list[Row], model: Path) -> list[str]:
    """Raise if no prompt fits, or if one does not and long prompts are not dropped; remark if some are dropped."""
    data = recipe.data
    tokens = ask(
        count,
        recipe,
        rows,
        str(model),
        limit_s=COUNTING_LIMIT_S,
        where=f"{key.path}, the tokens of row {rows[0].number} by {model}",
        fix="is the model a whole vision-language model? is an image 200 times as long as wide?",
    )
    limit, most = data.max_prompt_length, max(tokens)
    if most <= limit:
        return []
    what = f"the prompt of row {rows[tokens.index(most)].number} has {most:,} tokens with its images, and"
    fix = f"set MAX_PROMPT_LENGTH={most}, or lower MAX_PIXELS (MIN_PIXELS, which enlarges small images)"
    if data.filter_overlong_prompts and min(tokens) <= limit:
        return [f"{key.path}: {what} those over data.max_prompt_length {limit} are dropped; to keep them {fix}"]
    raise recipe.error(
        f"{key.path}: {what} data.max_prompt_length is {limit}",
        fix,
        *(key.key, "data.max_prompt_length", "data.min_pixels", "data.max_pixels"),
    )


def count(recipe: Recipe, rows: list[Row], model: str) -> list[int]:
    """Return the tokens of each row's prompt by the model's own processor, which scales images into the bounds.

    Runs in a child process, since the processor imports torch.
    """
    from transformers import AutoProcessor

    data = recipe.data
    processor = AutoProcessor.from_pretrained(model, trust_remote_code=recipe.worker.actor.model.trust_remote_code)
    bounds = {"min_pixels": data.min_pixels, "max_pixels": data.max_pixels}
    given = {name: pixels for name, pixels in bounds.items() if pixels is not None}
    tokens = []
    for row in rows:
        text = processor.apply_chat_template(structured(row.messages), add_generation_prompt=True, tokenize=False)
        images = [opened(each, data.image_dir).convert("RGB") for each in row.images]
        encoded = processor(text=[text], images=images, add_special_tokens=False, **given)
        tokens.append(len(encoded["input_ids"][0]))
    return tokens
