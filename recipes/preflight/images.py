"""Checks of the data's images: broken ones, places for them in the prompts, and room for their tokens.

Every image is opened, and the model's own processor counts the tokens of every row by the sizes of its images.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from recipes import pictures
from recipes.config import PathKey, Recipe
from recipes.data.rows import IMAGE_MARK, read_rows, structured
from recipes.engines.columns import chat_of, prompt_column, prompt_template
from recipes.errors import RecipeError, counted
from recipes.model_files import PROCESSORS, local_model
from recipes.preflight import data_files
from recipes.preflight.child import ask

ROWS_AT_ONCE = 64
MOST_DECODED = 256
"""Rows of each file whose images are decoded; in all further rows image headers are read and checksums verified."""
COUNTING_LIMIT_S = 600.0


class Row(NamedTuple):
    """A row with images: its number, counted from 0, its messages, and height and width of each image."""

    number: int
    messages: list[dict[str, Any]]
    sizes: list[tuple[int, int]]


def check_images(recipe: Recipe) -> list[str]:
    """Raise for rows whose images cannot be used, and where the prompts have no room for them."""
    limit, image_key = recipe.worker.rollout.limit_images, recipe.data.image_key
    files = [key for key in data_files.files(recipe) if limit or image_key in data_files.columns(key)]
    chosen = {key: rows for key in files if (rows := scan(recipe, Path(key.path)))}
    if not chosen:
        for name in ("data.min_pixels", "data.max_pixels"):
            if recipe.source_of(name).by_user and recipe.value(name) is not None:
                raise recipe.error(f"{name} has no effect: no row has an image", f"leave {name} out", name)
        return []
    least, most = recipe.data.min_pixels, recipe.data.max_pixels
    if least and most and least > most:
        what = f"data.min_pixels {least} is larger than data.max_pixels {most}"
        raise recipe.error(what, f"set MIN_PIXELS to {most} or less", "data.min_pixels", "data.max_pixels")
    name = recipe.worker.actor.model.model_path or ""
    folder = local_model(name)
    if folder is None or not any((folder / file).is_file() for file in PROCESSORS):
        if not Path(name).is_dir():  # the hub's cache has none or only a part of the model
            return [f"{name} is not here yet: whether prompts have room for their images is not known"]
        on_cpu = recipe.hardware == "cpu"
        raise recipe.error(
            f"the rows have images, and {name} has no processor for images ({PROCESSORS[0]})",
            f"set MODEL_PATH to a vision-language model{', such as recipes/tasks/number_game/tiny' * on_cpu}",
            "worker.actor.model.model_path",
        )
    return [remark for key, rows in chosen.items() for remark in _check_room(recipe, key, rows, folder)]


def scan(recipe: Recipe, file: Path) -> list[Row]:
    """The rows of a parquet file that have images, each of which is opened.

    Raises RecipeError for the first row with a broken or too flat image, too many images, another number of images than
    `<image>` marks, or the model's own marks in its text.
    """
    prompt_key, image_key, template = prompt_column(recipe), recipe.data.image_key, prompt_template(recipe)
    limit, found = recipe.worker.rollout.limit_images, list[Row]()
    for number, row in enumerate(read_rows(str(file), (prompt_key, image_key), ROWS_AT_ONCE)):
        messages, images = chat_of(row.get(prompt_key), template), row.get(image_key) or []
        texts = [str(message.get("content")) for message in messages]
        places = sum(text.count(IMAGE_MARK) for text in texts)
        own = next((mark for mark in pictures.MARKS for text in texts if mark in text), "")
        what, fix = "", "make it again, or leave the row out"
        if own:
            what, fix = f"{own} in its prompt, which a chat template writes", f"write {IMAGE_MARK}, or leave it out"
        elif places != len(images) or len(images) > limit:
            what = f"{counted(places, 'place')} {IMAGE_MARK} in its prompt and {counted(len(images), 'image')}"
            what += f", and worker.rollout.limit_images is {limit}"
            fix = f"write one {IMAGE_MARK} into the prompt for each image, and set limit_images to the most of them"
        sizes = []
        try:
            for image in [] if what else images:
                picture = _open_image(image, recipe.data.image_dir)
                sizes.append((picture.height, picture.width))
                pictures.check(picture, decode=number < MOST_DECODED)
        except (OSError, ValueError) as error:
            what = f"an image that cannot be used: {error}"
        if what:
            raise RecipeError(f"row {number} has {what}", where=f"{file}, row {number}, counted from 0", fix=fix)
        if images:
            found.append(Row(number, messages, sizes))
    return found


def _open_image(image: Any, folder: str | None) -> Any:
    """A PIL image from bytes, a path, or a dict with one of them, as both engines read it."""
    if isinstance(image, dict):
        image = image.get("bytes") or image.get("image") or image.get("path")
    if not isinstance(image, bytes | str):
        raise ValueError("neither bytes nor a path")
    if isinstance(image, str):
        image = (Path(folder or ".") / image.removeprefix("file://")).read_bytes()
    return pictures.open_image(image)


def _check_room(recipe: Recipe, key: PathKey, rows: list[Row], model: Path) -> list[str]:
    """Raise if no prompt fits, or if one does not and long prompts are not dropped; remark if some are dropped."""
    data, limit = recipe.data, recipe.data.max_prompt_length
    where = f"{key.path}, the tokens of its {len(rows):,} rows with images by {model}"
    fix = "is the model a whole vision-language model?"
    tokens = ask(count, recipe, rows, str(model), limit_s=COUNTING_LIMIT_S, where=where, fix=fix)
    most, over = max(tokens), sum(each > limit for each in tokens)
    if not over:
        return []
    longest, least = rows[tokens.index(most)], data.min_pixels or 0
    what = f"the prompt of row {longest.number} has {most:,} tokens with its images, and"
    enlarged = any(height * width < least for height, width in longest.sizes)
    fewer = f"MIN_PIXELS, to whose {least:,} it is enlarged" if enlarged else "MAX_PIXELS"
    fix = f"set MAX_PROMPT_LENGTH={most}, or lower {fewer}"
    if data.filter_overlong_prompts and over < len(tokens):
        dropped = f"{counted(over, 'row')} over data.max_prompt_length {limit}: dropped; to keep them"
        return [f"{key.path}: {what} {dropped} {fix}"]
    raise recipe.error(
        f"{key.path}: {what} data.max_prompt_length is {limit}",
        fix,
        *(key.key, "data.max_prompt_length", "data.min_pixels", "data.max_pixels"),
    )


def count(recipe: Recipe, rows: list[Row], model: str) -> list[int]:
    """The tokens of each row's prompt: the tokenizer's, with those of its images in the place of their marks.

    Runs in a child process, since the processor imports torch.
    """
    from PIL import Image
    from transformers import AutoProcessor

    data = recipe.data
    processor = AutoProcessor.from_pretrained(model, trust_remote_code=recipe.worker.actor.model.trust_remote_code)
    bounds = {"min_pixels": data.min_pixels, "max_pixels": data.max_pixels}
    given = {name: pixels for name, pixels in bounds.items() if pixels is not None}

    @cache
    def of_image(height: int, width: int) -> int:
        by_size = getattr(processor, "_get_num_multimodal_tokens", None)  # what vLLM asks, too
        if by_size is not None:
            return int(by_size(image_sizes=[(height, width)], **given)["num_image_tokens"][0])
        blank = Image.new("RGB", (width, height))
        encoded = processor(text=[processor.image_token], images=[blank], add_special_tokens=False, **given)
        return len(encoded["input_ids"][0])

    texts = [
        processor.apply_chat_template(structured(row.messages), add_generation_prompt=True, tokenize=False)
        for row in rows
    ]
    lengths = map(len, processor.tokenizer(texts, add_special_tokens=False)["input_ids"])
    return [length + sum(of_image(*size) - 1 for size in row.sizes) for length, row in zip(lengths, rows, strict=True)]
