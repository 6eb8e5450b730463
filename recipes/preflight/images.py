"""Images of the data, before the trainer starts: broken ones, and the tokens they take."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from recipes.config import PathKey, Recipe
from recipes.data.rows import IMAGE_MARK, prompt_column
from recipes.errors import RecipeError
from recipes.model_files import local_model
from recipes.paths import ROOT
from recipes.preflight import data

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
            f"write one {IMAGE_MARK} into the prompt for each image; see make_row in recipes/data/rows.py",
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


LIMIT_S = 600.0
PROCESSOR = ("preprocessor_config.json", "processor_config.json")


def check_images(recipe: Recipe) -> list[str]:
    """Raise for rows whose images cannot be used, and where the prompts have no room for them."""
    limit = recipe.worker.rollout.limit_images
    prompt_key, image_key = prompt_column(recipe), recipe.data.image_key
    options = {"limit": limit, "image_dir": recipe.data.image_dir, "wrap": _wrapping(recipe)}
    scans = {
        key: scan(Path(key.path), prompt_key, image_key, **options)
        for key in data.files(recipe)
        if limit or image_key in data.columns(key)
    }
    if not any(kind.sizes for found in scans.values() for kind in found.counts):
        return []
    model, remarks = _model(recipe)
    if remarks and model is None and not any(name in recipe.worker.actor.model.model_path for name in QWEN):
        return remarks
    rows_that_fit: Counter[str] = Counter()  # of all files of a split
    counted = {}
    for key, found in scans.items():
        answer = counted[key] = _counted(recipe, list(found.counts), model)
        fitting = zip(answer["tokens"], found.counts.values(), strict=True)
        rows_that_fit[key.key] += sum(rows for tokens, rows in fitting if tokens <= recipe.data.max_prompt_length)
    for key, found in scans.items():
        remarks += _room(recipe, key, found, counted[key], model is not None, rows_that_fit[key.key])
    return remarks


QWEN = ("Qwen2-VL", "Qwen2.5-VL")


def _wrapping(recipe: Recipe) -> Callable[[str], str]:
    """What EasyR1 makes of a prompt: its `format_prompt`, with the prompt as `content`."""
    if not recipe.data.format_prompt:
        return str
    from jinja2 import Template

    template = Template(Path(recipe.data.format_prompt).read_text(encoding="utf-8").strip())
    return lambda prompt: template.render(content=prompt)


def _model(recipe: Recipe) -> tuple[Path | None, list[str]]:
    """The folder of a model with a processor; None, with a remark, for one that is still on the hub."""
    name = recipe.worker.actor.model.model_path
    folder = local_model(name)
    has_processor = folder is not None and any((folder / file).is_file() for file in PROCESSOR)
    if has_processor:
        return folder, []
    if folder is None or not Path(name).is_dir():
        counting = "image tokens are counted by Qwen2-VL's rule, text is left out"
        unknown = "whether prompts have room for their images is not known"
        return None, [f"{name} is not here yet: {counting if any(family in name for family in QWEN) else unknown}"]
    raise RecipeError(
        f"the rows have images, and {folder} has no processor for images ({PROCESSOR[0]})",
        where=f"worker.actor.model.model_path, from {recipe.source_of('worker.actor.model.model_path')}",
        fix="set MODEL_PATH to a vision-language model",
    )


def _counted(recipe: Recipe, kinds: list[Kind], model: Path | None) -> dict[str, Any]:
    """The answer of `recipes.preflight.image_tokens`."""
    question = {
        "model": model and str(model),
        "trust_remote_code": recipe.worker.actor.model.trust_remote_code,
        "engine": recipe.engine,
        "low": recipe.data.min_pixels,
        "high": recipe.data.max_pixels,
        "limit": recipe.data.max_prompt_length,
        "kinds": kinds,
    }
    where = str(model or "the images of the data files")
    command = [sys.executable, "-m", "recipes.preflight.image_tokens"]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(question),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RecipeError(f"counting {len(kinds):,} prompts took more than {LIMIT_S:.0f} s", where=where) from error
    answer = next((line for line in done.stdout.splitlines() if line.startswith('{"tokens"')), None)
    if answer is None:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise RecipeError(
            f"the image tokens of the prompts cannot be counted: {last[0]}",
            where=where,
            fix="is the model a whole vision-language model? is an image 200 times as long as wide?",
        )
    return json.loads(answer)


def _room(recipe: Recipe, key: PathKey, found: Scan, answer: dict[str, Any], has_text: bool, left: int) -> list[str]:
    """Raise where prompts of a file do not fit and too few are left of its split; a remark where enough are."""
    limit = recipe.data.max_prompt_length
    long = sum(rows for tokens, rows in zip(answer["tokens"], found.counts.values(), strict=True) if tokens > limit)
    if not long:
        return []
    kind = list(found.counts)[answer["longest"]]
    total = answer["tokens"][answer["longest"]]
    images = ", ".join(
        f"an image of {size[0]} x {size[1]}, shown to the model as {shown[0]} x {shown[1]}"
        for size, shown in zip(kind.sizes, answer["shown"], strict=True)
    )
    what = (
        f"{long:,} of {found.rows:,} prompts are longer than data.max_prompt_length {limit}: row {found.first[kind]} "
        f"has {images or 'no image'}, {total:,} tokens {'with' if has_text else 'without'} its text"
    )
    ways = [f"MAX_PROMPT_LENGTH={total}" + ("" if has_text else " and what the text needs")]
    ways += [f"{name.upper()}={answer[name]}" for name in ("max_pixels", "min_pixels") if name in answer]
    fix = f"set {' or '.join(ways)}"
    needed = recipe.data.rollout_batch_size if key.key == "data.train_files" else 1
    if recipe.data.filter_overlong_prompts and left >= needed:
        return [f"{key.path}: {what}. They are dropped. To keep them, {fix}"]
    keys = ("data.max_prompt_length", "data.min_pixels", "data.max_pixels")
    where = "; ".join([f"{key.path} ({key.key})", *(f"{name}, from {recipe.source_of(name)}" for name in keys)])
    raise RecipeError(what, where=where, fix=fix)
