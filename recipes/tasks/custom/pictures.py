"""The images of a record as bytes."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError
from recipes.tasks.custom.record import Record

_SIGNATURES = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")


def images(record: Record) -> list[bytes]:
    """Encoded image files; relative paths start at the folder of the record's file.

    Raises:
        RecipeError: a file that is not there or is no image, or a data URI that cannot be read.
    """
    return [_bytes(image, record) for image in record.images]


def _bytes(image: Any, record: Record) -> bytes:
    if isinstance(image, dict):
        image = image.get("bytes") or image.get("path")
    if isinstance(image, str) and image.startswith("data:"):
        found, shown = _data_uri(image, record), "the data URI"
    elif isinstance(image, str):
        path = Path(record.place.file).parent / Path(image).expanduser()
        shown = f"the image {path}"
        try:
            found = path.read_bytes()
        except OSError as error:
            raise RecipeError(
                f"{shown} cannot be read: {error.strerror}",
                where=str(record.place),
                fix="give the path from the folder of the data file, or an absolute one",
            ) from error
    else:
        found, shown = image, "the image"
    if not found.startswith(_SIGNATURES):
        raise RecipeError(f"{shown} is no PNG, JPEG, GIF, WebP, BMP or TIFF", where=str(record.place), fix="convert it")
    return found


def _data_uri(text: str, record: Record) -> bytes:
    head, comma, body = text.partition(",")
    try:
        if not comma or not head.endswith(";base64"):
            raise ValueError("it is not data:image/...;base64,...")
        return base64.b64decode(body, validate=True)
    except (ValueError, binascii.Error) as error:
        raise RecipeError(f"a data URI cannot be read: {error}", where=str(record.place), fix="mend it") from error
