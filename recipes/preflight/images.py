"""Images of the data, before the trainer starts: broken ones, and the tokens they take."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from recipes.config import PathKey, Recipe
from recipes.data.rows import IMAGE_MARK
from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.preflight import data
from recipes.preflight.model import local_folder

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
            f"write one {IMAGE_MARK} into the prompt for each image; recipes.data.rows.make_row checks it",
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
QWEN2_VL = 28
"""Pixels of a side that become one token: patches of 14, merged two by two."""
FETCHED = (4, 16384)
"""Fewest and most tokens of an image as verl's reader (qwen_vl_utils) hands it to the processor."""


@dataclass(frozen=True)
class Pixels:
    """How an engine sizes an image before and in the processor.

    Attributes:
        engine: verl rounds to whole tokens first and gives both bounds to the processor; EasyR1 scales into the bounds
            first and leaves the processor its own.
        low, high: data.min_pixels and data.max_pixels; None where they are not set.
    """

    engine: str
    low: int | None
    high: int | None

    def before(self, size: Size, factor: int) -> Size:
        """The size that the processor is given."""
        if self.engine == "verl":
            return smart_resize(size, factor, FETCHED[0] * factor**2, FETCHED[1] * factor**2)
        for bound, beyond in ((self.high, 1), (self.low, -1)):
            area = size[0] * size[1]
            if bound is not None and (area - bound) * beyond > 0:
                scale = math.sqrt(bound / area)
                size = (int(size[0] * scale), int(size[1] * scale))
        return size

    def shown(self, size: Size, factor: int) -> Size:
        """The size that the model sees, by the rule of Qwen2-VL's processor."""
        inner = (self.low, self.high) if self.engine == "verl" else (None, None)
        return smart_resize(self.before(size, factor), factor, *inner)


def smart_resize(size: Size, factor: int, low: int | None, high: int | None) -> Size:
    """Qwen2-VL's rule: sides become multiples of `factor`, and the area lies within the bounds.

    Source: `smart_resize` of transformers' Qwen2VLImageProcessor. Raises ValueError for an image that is 200 times as
    long as it is wide, as the processor does.
    """
    width, height = size
    if max(size) > 200 * min(size):
        raise ValueError(f"an image of {width} x {height} is too narrow: one side may be 200 times the other")
    columns, lines = round(width / factor), round(height / factor)
    area = columns * lines * factor**2
    if high is not None and area > high:
        scale = math.sqrt(width * height / high) * factor
        columns, lines = max(1, math.floor(width / scale)), max(1, math.floor(height / scale))
    elif low is not None and area < low:
        scale = math.sqrt(low / (width * height)) / factor
        columns, lines = math.ceil(width * scale), math.ceil(height * scale)
    return columns * factor, lines * factor


@dataclass(frozen=True)
class Counted:
    """Tokens of the parts of prompts.

    Attributes:
        by: "processor", or "rule" where only the images are counted, by Qwen2-VL's rule.
        factor: pixels of a side that become one token.
        text: tokens of the messages in the chat's format, images left out; by their JSON.
        images: tokens of an image, by its size.
    """

    by: str
    factor: int
    text: dict[str, int]
    images: dict[Size, int]

    def total(self, kind: Kind) -> int:
        """Tokens of a prompt."""
        return self.text[kind.messages] + sum(self.images[size] for size in kind.sizes)


def by_rule(kinds: Collection[Kind], pixels: Pixels) -> Counted:
    """Images alone, counted without a processor. Raises ValueError for an image that is too narrow."""
    sizes = {size: pixels.shown(size, QWEN2_VL) for kind in kinds for size in kind.sizes}
    tokens = {size: shown[0] * shown[1] // QWEN2_VL**2 for size, shown in sizes.items()}
    return Counted("rule", QWEN2_VL, {kind.messages: 0 for kind in kinds}, tokens)


def by_processor(kinds: Collection[Kind], pixels: Pixels, model: Path, *, trust_remote_code: bool) -> Counted:
    """Text and images, counted by the processor in the model's folder.

    Raises:
        RecipeError: the processor cannot be loaded, or refuses an image.
    """
    texts = sorted({kind.messages for kind in kinds})
    sizes = sorted({size for kind in kinds for size in kind.sizes})
    question = {
        "model": str(model),
        "trust_remote_code": trust_remote_code,
        "engine": pixels.engine,
        "low": pixels.low,
        "high": pixels.high,
        "texts": texts,
        "sizes": sizes,
    }
    answer = _asked(question)
    return Counted(
        "processor",
        answer["factor"],
        dict(zip(texts, answer["text"], strict=True)),
        dict(zip(sizes, answer["images"], strict=True)),
    )


def _asked(question: dict[str, Any]) -> dict[str, Any]:
    """The worker's answer."""
    command = [sys.executable, "-m", "recipes.preflight.image_worker"]
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
        raise RecipeError(
            f"the processor took more than {LIMIT_S:.0f} s to count {len(question['texts']):,} prompts",
            where=question["model"],
        ) from error
    said = next((line for line in done.stdout.splitlines() if line.startswith('{"factor"')), None)
    if said is None:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise RecipeError(
            f"the model's processor cannot count image tokens: {last[0]}",
            where=question["model"],
            fix="is it a whole vision-language model? set MODEL_PATH to one",
        )
    return json.loads(said)


PROCESSOR = ("preprocessor_config.json", "processor_config.json")


def inspect(recipe: Recipe) -> list[str]:
    """Raise for rows whose images cannot be used, and where the prompts have no room for them."""
    limit = recipe.worker.rollout.limit_images
    prompt_key, image_key = data.prompt_column(recipe), recipe.data.image_key
    options = {"limit": limit, "image_dir": recipe.data.image_dir, "wrap": _wrapping(recipe)}
    scans = {
        key: scan(Path(key.path), prompt_key, image_key, **options)
        for key in data.files(recipe)
        if limit or image_key in data.names(key)
    }
    kinds = {kind for found in scans.values() for kind in found.counts}
    if not any(kind.sizes for kind in kinds):
        return []
    pixels = Pixels(recipe.engine, recipe.data.min_pixels, recipe.data.max_pixels)
    counted, remarks = _counted(recipe, kinds, pixels)
    if counted:
        fitting: Counter[str] = Counter()  # of all files of a split
        for key, found in scans.items():
            fitting[key.key] += sum(count for kind, count in found.counts.items() if _fits(recipe, kind, counted))
        for key, found in scans.items():
            remarks += _room(recipe, key, found, counted, pixels, left=fitting[key.key])
    return remarks


def _fits(recipe: Recipe, kind: Kind, counted: Counted) -> bool:
    return counted.total(kind) <= recipe.data.max_prompt_length


def _wrapping(recipe: Recipe) -> Callable[[str], str]:
    """What EasyR1 makes of a prompt: its `format_prompt`, with the prompt as `content`."""
    if not recipe.data.format_prompt:
        return str
    from jinja2 import Template

    template = Template(Path(recipe.data.format_prompt).read_text(encoding="utf-8").strip())
    return lambda prompt: template.render(content=prompt)


def _counted(recipe: Recipe, kinds: set[Kind], pixels: Pixels) -> tuple[Counted | None, list[str]]:
    model = recipe.worker.actor.model
    folder = local_folder(model.model_path)
    if folder is None or (not Path(model.model_path).is_dir() and not _has_processor(folder)):
        if not any(family in model.model_path for family in ("Qwen2-VL", "Qwen2.5-VL")):
            return None, [
                f"{model.model_path} is not here yet: whether prompts have room for their images is not known"
            ]
        try:
            counted = by_rule(kinds, pixels)
        except ValueError as error:
            raise RecipeError(str(error), where="the images of the data files", fix="cut it") from error
        return counted, [
            f"{model.model_path} is not here yet: image tokens are counted by Qwen2-VL's rule, text is left out"
        ]
    if not _has_processor(folder):
        raise RecipeError(
            f"the rows have images, and {folder} has no processor for images ({PROCESSOR[0]})",
            where=f"worker.actor.model.model_path, from {recipe.source_of('worker.actor.model.model_path')}",
            fix="set MODEL_PATH to a vision-language model",
        )
    return by_processor(kinds, pixels, folder, trust_remote_code=model.trust_remote_code), []


def _has_processor(folder: Path) -> bool:
    return any((folder / name).is_file() for name in PROCESSOR)


def _room(recipe: Recipe, key: PathKey, found: Scan, counted: Counted, pixels: Pixels, *, left: int) -> list[str]:
    """Raise where prompts of a file do not fit and too few are left of its split; a remark where enough are."""
    limit = recipe.data.max_prompt_length
    long = sum(count for kind, count in found.counts.items() if not _fits(recipe, kind, counted))
    if not long:
        return []
    worst = max(found.counts, key=counted.total)
    what = (
        f"{long:,} of {found.rows:,} prompts are longer than data.max_prompt_length {limit}: "
        f"{_worst(worst, found, counted, pixels)}"
    )
    fix = "change one of these: " + "; or ".join(_ways_out(worst, limit, counted, pixels))
    needed = recipe.data.rollout_batch_size if key.key == "data.train_files" else 1
    if recipe.data.filter_overlong_prompts and left >= needed:
        return [f"{key.path}: {what}. They are dropped. To keep them, {fix}"]
    keys = ("data.max_prompt_length", "data.min_pixels", "data.max_pixels")
    where = "; ".join([f"{key.path} ({key.key})", *(f"{name}, from {recipe.source_of(name)}" for name in keys)])
    raise RecipeError(what, where=where, fix=fix)


def _worst(kind: Kind, found: Scan, counted: Counted, pixels: Pixels) -> str:
    """`row 3 has an image of 720 x 1280, which takes 1,196 tokens as 728 x 1288, and text of 98`."""
    images = ", ".join(
        f"an image of {_shown(size)}, which takes {counted.images[size]:,} tokens as "
        f"{_shown(pixels.shown(size, counted.factor))}"
        for size in kind.sizes
    )
    text = f", and text of {counted.text[kind.messages]:,}" if counted.by == "processor" else ""
    return f"row {found.first[kind]} has {images or 'no image'}{text}"


def _ways_out(kind: Kind, limit: int, counted: Counted, pixels: Pixels) -> list[str]:
    """Each change that makes room by itself: a longer prompt, fewer pixels, a smaller image."""
    text = " and what the text needs" if counted.by == "rule" else ""
    ways = [f"set MAX_PROMPT_LENGTH to {counted.total(kind)} or more{text}"]
    if not kind.sizes:
        return ways
    each = (limit - counted.text[kind.messages]) // len(kind.sizes)
    largest = max(kind.sizes, key=lambda size: counted.images[size])
    factor = counted.factor

    def fits(bounds: Pixels, size: Size) -> bool:
        width, height = bounds.shown(size, factor)
        return width * height <= each * factor**2

    if pixels.low is not None and pixels.low > max(each, 0) * factor**2:
        lower = [Pixels(pixels.engine, tokens * factor**2, pixels.high) for tokens in range(each, 0, -1)]
        way = next((bounds for bounds in lower if fits(bounds, largest)), None)
        return [*ways, f"set MIN_PIXELS to {way.low} or less, since smaller images are enlarged to it"] if way else ways
    fewer = (Pixels(pixels.engine, pixels.low, tokens * factor**2) for tokens in range(each, 0, -1))
    way = next((b for b in fewer if fits(b, largest) and (b.low or 0) <= (b.high or 0)), None)
    if way:
        shown = _shown(way.shown(largest, factor))
        ways.append(f"set MAX_PIXELS to {way.high} or less, which shows that image as {shown}")
    smaller = next((size for size in _scaled(largest, factor) if fits(pixels, size)), None)
    if smaller:
        ways.append(f"make images of {_shown(smaller)} or smaller")
    return ways


def _scaled(size: Size, factor: int) -> list[Size]:
    """Smaller sizes of nearly the same shape, in whole tokens, the largest first."""
    width, height = size
    columns = range(width // factor, 0, -1)
    return [(column * factor, max(1, height * column // width) * factor) for column in columns]


def _shown(size: Size) -> str:
    return f"{size[0]} x {size[1]}"
