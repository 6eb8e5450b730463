"""JSON and JSONL, one record after the other: a file is never held as a whole.

What people's files have is read: a byte-order mark, Windows line ends, empty lines, a comma behind a record. What could
mean two things is refused with its line: a field given twice, NaN, text in another encoding.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from recipes.errors import RecipeError
from recipes.tasks.custom.record import EXAMPLE, Place

PIECE = 1 << 20
LONGEST = 64 << 20
"""Characters of one record of an array; a bracket that never closes must not read the file into memory."""

_BLANK = " \t\r\n"


class _Twice(ValueError):
    """A field that an object has twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Twice(f"the field {twice} is given twice")
    return found


def _constant(name: str) -> Any:
    raise _Twice(f"{name} is no number that JSON knows")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)


def read(path: Path) -> Iterator[tuple[Place, Any]]:
    """Every record of the file with its place; the fields are not checked here.

    A file may be an array of records, or have a record on each line, whatever its suffix.

    Raises:
        RecipeError: at the first line that cannot be read.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = _first_character(file)
            file.seek(0)
            yield from (_array(file, path) if first == "[" else _lines(file, path))
    except UnicodeDecodeError as error:
        raise RecipeError(
            f"the file is not UTF-8: byte {error.object[error.start]:#x}",
            where=_broken_line(path),
            fix="save it as UTF-8",
        ) from error


def _first_character(file: TextIO) -> str:
    while piece := file.read(PIECE):
        if piece.strip(_BLANK):
            return piece.lstrip(_BLANK)[0]
    return ""


def _broken_line(path: Path) -> str:
    """The first line that is not UTF-8."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return str(Place(str(path), number))
    return str(path)


def _lines(file: TextIO, path: Path) -> Iterator[tuple[Place, Any]]:
    for number, line in enumerate(file, 1):
        text = line.lstrip("\ufeff" + _BLANK).rstrip(_BLANK)
        text = text.removesuffix(",").rstrip(_BLANK)
        if not text:
            continue
        place = Place(str(path), number)
        try:
            value, end = _DECODER.raw_decode(text)
        except ValueError as error:
            raise _unreadable(error, place, number == 1 and text[0] == "{") from error
        except RecursionError as error:
            raise _too_deep(place) from error
        if end != len(text):
            raise RecipeError(
                f"text stands behind the record: {text[end : end + 40]!r}",
                where=str(place),
                fix=f"put each record on a line of its own, such as {EXAMPLE}",
            )
        yield place, value


def _unreadable(error: ValueError, place: Place, may_span_lines: bool) -> RecipeError:
    if isinstance(error, _Twice):
        return RecipeError(str(error), where=str(place), fix="leave one of them")
    what = f"{error.msg} at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else str(error)
    spread = "; records that span lines belong into an array: [ ... ]" if may_span_lines else ""
    return RecipeError(f"this is not JSON: {what}", where=str(place), fix=f"a right row: {EXAMPLE}{spread}")


def _too_deep(place: Place) -> RecipeError:
    return RecipeError("brackets inside brackets without end", where=str(place), fix=f"a right row: {EXAMPLE}")


class _Window:
    """The part of an array's text that is read and not yet used, and the line at which it begins."""

    def __init__(self, file: TextIO) -> None:
        self._file, self.text, self.at, self.line, self.ended = file, "", 0, 1, False

    def more(self) -> bool:
        """Read on; twice as much where a record is long, so that the effort stays linear."""
        self.text = self.text[self.at :]
        self.at = 0
        piece = self._file.read(max(PIECE, len(self.text)))
        self.ended = not piece
        self.text += piece
        return bool(piece)

    def skip(self, characters: str) -> str:
        """Go on to what is none of `characters`; returns it, or an empty text at the end of the file."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in characters:
                self.line += self.text[self.at] == "\n"
                self.at += 1
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""

    def take(self, end: int) -> None:
        """Leave a record behind."""
        self.line += self.text.count("\n", self.at, end)
        self.at = end


def _array(file: TextIO, path: Path) -> Iterator[tuple[Place, Any]]:
    window = _Window(file)
    window.skip(_BLANK)
    window.take(window.at + 1)
    separated = True
    while True:
        character = window.skip(_BLANK)
        place = Place(str(path), window.line)
        if character == ",":
            if separated:
                raise RecipeError("a comma with no record before it", where=str(place), fix="remove it")
            separated = True
            window.take(window.at + 1)
        elif character == "]":
            window.take(window.at + 1)
            break
        elif not character:
            raise RecipeError(
                "the array is not closed", where=str(place), fix="the file may be cut short: end it with ]"
            )
        elif not separated:
            raise RecipeError("a comma is missing before this record", where=str(place), fix="add it")
        else:
            yield place, _element(window, place)
            separated = False
    if rest := window.skip(_BLANK):
        place = Place(str(path), window.line)
        raise RecipeError(
            f"text stands behind the array: {rest!r}", where=str(place), fix="one array, and nothing else"
        )


def _element(window: _Window, place: Place) -> Any:
    """One record of an array, reading on until it is whole."""
    while True:
        try:
            value, end = _DECODER.raw_decode(window.text, window.at)
        except json.JSONDecodeError as error:
            cut = error.msg.startswith("Unterminated string") or error.pos >= len(window.text) - 8
            if not cut or len(window.text) - window.at > LONGEST or not window.more():
                line = window.line + window.text.count("\n", window.at, error.pos)
                column = error.pos - window.text.rfind("\n", window.at, error.pos)
                raise RecipeError(
                    f"this is not JSON: {error.msg} at character {column}",
                    where=f"{Place(place.file, line)} (the record begins in line {place.number})",
                    fix=f"a right row: {EXAMPLE}",
                ) from error
            continue
        except _Twice as error:
            raise RecipeError(str(error), where=str(place), fix="leave one of them") from error
        except RecursionError as error:
            raise _too_deep(place) from error
        # A number may go on in the next piece; records do not begin or end so.
        if end == len(window.text) and not window.ended and not isinstance(value, dict) and window.more():
            continue
        window.take(end)
        return value
