"""A picture as a row holds it: a whole file, of a shape that engines take, and without transparency."""

import base64
import json
import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from operator import gt, lt
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from recipes.errors import RecipeError, abbreviated, first_line
from recipes.files import write_json
from recipes.model_files import read_json

SIGNATURES = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM", b"II*\x00", b"MM\x00*")
"""First bytes of PNG, JPEG, GIF, WebP, BMP and TIFF files."""
ORIENTATION = 0x112  # of EXIF
MOST_RATIO = 200
"""The longer side by the shorter; qwen_vl_utils, which both engines use, refuses more."""
MARKS = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
"""Tokens that a chat template writes for a picture; a prompt's text cannot bring its own."""
UNSHOWN = ("<video>", "<audio>")
"""verl splits a prompt with pictures at these, and asks for a video or a sound; elsewhere they are text."""
OWN_MARK = "which a chat template or a trainer reads as its own"

Files = dict[str, list[int]]
"""Path of a picture that was read -> its bytes and its time of change in nanoseconds."""


def read(image: Any, folder: Path, files: Files) -> bytes:
    """The encoded file of a picture in a user's row, on white where it is transparent.

    `image` is bytes, a path from `folder`, a data URI or base64, or a mapping with `bytes`, `path`, `url` or
    `image`; a path that is read is added to `files`. Raises RecipeError where there is no picture, or one that engines
    do not take.
    """
    if isinstance(image, dict):
        image = next(filter(None, map(image.get, ("bytes", "path", "url", "image"))), None)
    name, where = f"the image {abbreviated(image)}", str(folder)
    if not image:
        fix = "give its bytes, a data URI or a path, or leave the row out"
        raise RecipeError("the image is empty: neither bytes nor a path", where=where, fix=fix)
    try:
        data = _encoded(image, folder, files) if isinstance(image, str) else image
    except (OSError, ValueError, RuntimeError) as error:  # binascii's is a ValueError, an unknown ~user a RuntimeError
        fix = "give a data URI, or the path from the folder of the data file, or an absolute one"
        reason = getattr(error, "strerror", None) or error
        raise RecipeError(f"{name} cannot be read: {reason}", where=where, fix=fix) from error
    if not isinstance(data, bytes) or not data.startswith(SIGNATURES):
        raise RecipeError(f"{name} is no PNG, JPEG, GIF, WebP, BMP or TIFF", where=where, fix="convert it")
    try:
        return usable(data)
    except ValueError as error:
        fix = "make it again, or leave the row out"
        raise RecipeError(f"{name} cannot be used: {error}", where=where, fix=fix) from error


def _encoded(text: str, folder: Path, files: Files) -> bytes:
    """The bytes behind a data URI, base64 or a path."""
    head, _, body = text.partition(",")
    if text.startswith("data:"):
        if not head.endswith(";base64"):
            raise ValueError("it is not data:image/...;base64,...")
        return _decoded(body)
    if text.startswith(("http://", "https://")):
        raise ValueError("it is an address, and nothing is downloaded")
    with suppress(ValueError):
        if (data := _decoded(text)).startswith(SIGNATURES):
            return data
    path = folder / Path(text.removeprefix("file://")).expanduser()
    if text.startswith("file://") and not path.is_file():
        path = folder / Path(unquote(text[7:])).expanduser()
    data, facts = path.read_bytes(), path.stat()
    files[str(path)] = [facts.st_size, facts.st_mtime_ns]
    return data


OF_ONE = ("resized_height", "resized_width", "min_pixels", "max_pixels")
"""Keys with which qwen_vl_utils, and so verl alone, resizes one picture."""


def trained(image: Any, engine: str, folder: str | Path = ".", *, by_datasets: bool = False) -> bytes:
    """The encoded file of a picture in a finished row, in the forms that the trainer's own reader takes.

    verl (verl/utils/dataset/rl_dataset.py:339 (`elif isinstance(image, dict)`)) takes a path, a data URI, or a mapping
    with `bytes` or, without that key, `image` or `image_url`; EasyR1's `process_image` a path from `folder`, bytes, or
    a mapping with `bytes`. Where `by_datasets` opens them, it is bytes or a path, and the picture upright.

    Raises ValueError for other forms, and for a file that is not there.
    """
    kinds: Any
    verl, own = engine == "verl", image if isinstance(image, dict) else {}
    if alone := [name for name in OF_ONE if verl and own.get(name) is not None]:
        raise ValueError(f"{alone[0]} of one picture, and data.min_pixels and data.max_pixels bound all of them")
    held, kinds = image, (str if verl else str | bytes)
    if own:
        folder, held, kinds = ".", own.get("bytes"), bytes
        if by_datasets and held is None:
            held, kinds = own.get("path"), str
        elif verl and "bytes" not in own:
            held, kinds = own.get("image", own.get("image_url")), str
    if not isinstance(held, kinds):
        fix = "give the bytes of its file, {'bytes': ...}, or its path as text"
        raise ValueError(f"{abbreviated(image)} is no picture that {engine} opens: {fix}")
    if isinstance(held, str):
        held = held.removeprefix("file://" if verl else "")
        is_uri = verl and held.startswith(("data:", "http://", "https://"))
        try:
            held = _encoded(held, Path(), {}) if is_uri else (Path(folder) / held).read_bytes()
        except OSError as error:
            raise ValueError(f"{abbreviated(image)}: {error.strerror}") from error
    picture = open_image(held) if by_datasets else None
    if picture and (picture.getexif().get(ORIENTATION) in range(2, 9) or (verl and picture.has_transparency_data)):
        return encoded(picture.convert("RGB") if verl else picture, 0)
    return held


def sizes_of_easyr1(width: int, height: int, bounds: Mapping[str, int | None]) -> Iterator[tuple[int, int]]:
    """The sizes that a picture has in EasyR1's `process_image`: its own, and each to which it is resized."""
    yield width, height
    for name, is_beyond in ("max_pixels", gt), ("min_pixels", lt):
        if (bound := bounds.get(name)) is not None and is_beyond(width * height, bound):
            factor = math.sqrt(bound / (width * height))
            width, height = int(width * factor), int(height * factor)
            yield width, height


def opened_by_datasets(file: Path | str, column: str) -> bool:
    """Return whether a parquet file says that a column has Hugging Face's Image, which `datasets` opens itself."""
    from pyarrow.parquet import read_schema

    info = json.loads((read_schema(file).metadata or {}).get(b"huggingface", b"{}")).get("info", {})
    return '"_type": "Image"' in json.dumps(info.get("features", {}).get(column))


def _decoded(text: str) -> bytes:
    """The bytes that base64 writes, which may have line breaks, an address's alphabet, and no padding."""
    signs = "".join(text.split()).rstrip("=")
    return base64.b64decode(signs + "=" * (-len(signs) % 4), "-_" if {*"-_"} & {*signs} else None, validate=True)


def remember(folder: Path, files: Files) -> None:
    """Write beside a folder of rows which pictures they were made from."""
    if files:
        write_json(_list(folder), files)


def _list(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.pictures.json")


def unchanged(folder: Path) -> bool:
    """Return whether the pictures that the rows in `folder` were made from are still those files."""

    def facts(path: Path) -> list[int]:
        return [path.stat().st_size, path.stat().st_mtime_ns] if path.is_file() else []

    return all(facts(Path(path)) in ([], known) for path, known in read_json(_list(folder)).items())


def check(picture: Any, decode: bool = True) -> None:
    """Raise ValueError for a PIL image that no engine can show.

    Without `decode` only the file's checksums are verified; the image cannot be used then.
    """
    sides = picture.size
    if max(sides) > MOST_RATIO * min(sides):
        raise ValueError(f"{sides[0]} x {sides[1]} pixels, and engines take no picture flatter than {MOST_RATIO}:1")
    try:
        _check_shown(picture)
        if decode:
            eighth = max(sides[0] // 8, 1), max(sides[1] // 8, 1)
            picture.draft("RGB", eighth)  # of a JPEG, all is read and an eighth computed
            picture.load()
        else:
            picture.verify()
    except Exception as error:  # Pillow's decoders raise IndexError, TypeError and others on broken bytes
        raise ValueError(first_line(error)) from error


def _check_shown(picture: Any) -> None:
    if picture.mode == "F" or picture.mode.startswith("I"):
        raise ValueError(f"its mode is {picture.mode}, of which engines show all values above 255 as white")
    if picture.format != "MPO" and getattr(picture, "is_animated", False):  # MPO: a photo with further views
        raise ValueError(f"it has {picture.n_frames} frames, of which engines show the first")


def open_image(data: bytes) -> Any:
    """The PIL image of an encoded file. Raises ValueError where it is none."""
    from PIL import Image

    try:
        return Image.open(BytesIO(data))
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(str(error).partition(" <_io.BytesIO")[0]) from error


def encoded(picture: Any, compress_level: int = 6) -> bytes:
    """A PIL image as a PNG file that stands upright. Raises ValueError for one that engines show otherwise."""
    from PIL import ImageOps

    _check_shown(picture)
    picture, out = ImageOps.exif_transpose(picture), BytesIO()
    (picture if picture.mode in ("1", "L", "LA", "P", "RGB", "RGBA") else picture.convert("RGB")).save(
        out, "PNG", compress_level=compress_level
    )
    return out.getvalue()


def usable(data: bytes) -> bytes:
    """The same file; a PNG on white where it is transparent, since verl shows white there and EasyR1 what lies below;
    a JPEG that stands upright where engines would show it as the camera lay.

    Raises ValueError where it is broken, or too flat.
    """
    from PIL import Image, ImageOps

    picture = open_image(data)
    check(picture)
    with suppress(SyntaxError, struct.error, OSError, ValueError, TypeError):  # a broken EXIF turns nothing
        if picture.getexif().get(ORIENTATION) in range(2, 9):
            kind, picture = picture.format, ImageOps.exif_transpose(open_image(data))
            if kind in ("JPEG", "MPO"):
                picture.convert("RGB").save(out := BytesIO(), "JPEG", quality=95)
                return out.getvalue()
            data = encoded(picture)
    if not picture.has_transparency_data:
        return data
    picture = picture.convert("RGBA")
    if picture.getchannel("A").getextrema() == (255, 255):
        return data
    ground = Image.new("RGBA", picture.size, "white")
    ground.alpha_composite(picture)
    return encoded(ground.convert("RGB"))
