"""Screenshots and other images: rows that hold them rightly, and prompts that have room for their tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from recipes.config import PathKey, Recipe
from recipes.errors import RecipeError
from recipes.preflight import data
from recipes.preflight.image_rows import Kind, Scan, Size, scan
from recipes.preflight.image_tokens import Counted, Pixels, by_processor, by_rule
from recipes.preflight.model import local_folder

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
