"""Users' files: JSON, JSONL, CSV and parquet, one record at a time."""

from __future__ import annotations

import base64
import binascii
import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from recipes.config.text import nearest
from recipes.errors import RecipeError

REQUIRED = ("prompt", "ground_truth", "data_source")
OPTIONAL = ("images", "solution")
EXAMPLE = '{"prompt": "What is 17 + 25?", "ground_truth": "42", "data_source": "math_reasoning"}'
CHAT_EXAMPLE = '{"prompt": [{"role": "user", "content": "What is 17 + 25?"}], "ground_truth": ...}'

# What other collections call our fields.
_USUAL = {
    "prompt": ("question", "problem", "instruction", "input", "query", "messages", "text"),
    "ground_truth": ("answer", "label", "target", "output", "gold", "response", "completion", "answers"),
    "data_source": ("source", "dataset", "task", "category", "type"),
}


@dataclass(frozen=True)
class Place:
    """Where a record stands: file, and line (of text) or row (of parquet), counted from 1."""

    file: str
    number: int
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.number}"


@dataclass(frozen=True)
class Record:
    """A record that was checked.

    Attributes:
        place: where it stands.
        messages: chat messages; one of the user, before it one of the system if there is one.
        ground_truth: text; JSON where the file has a list or an object.
        data_source: which reward it belongs to.
        images: paths, data URIs or bytes, in the order of their marks in the prompt.
        solution: a response that earns the full score, if the file has one.
        rest: every further field.
    """

    place: Place
    messages: tuple[tuple[str, str], ...]
    ground_truth: str
    data_source: str
    images: tuple[Any, ...] = ()
    solution: str = ""
    rest: Mapping[str, Any] = field(default_factory=dict)

    @property
    def question(self) -> str:
        """The user's message."""
        return self.messages[-1][1]


def checked(raw: Any, place: Place, default_source: str | None = None) -> Record:
    """The record behind a JSON value. Raises RecipeError that names the place, the field and an example."""
    if not isinstance(raw, dict):
        raise _wrong(f"{_shown(raw)} is not a record with fields", place)
    given = {name: value for name, value in raw.items() if value is not None}
    if default_source is not None:
        given.setdefault("data_source", default_source)
    for name in REQUIRED:
        if name not in given:
            raise _missing(name, raw, place)
    source = given["data_source"]
    if not isinstance(source, str) or not source.strip():
        raise _wrong(f"data_source is {_shown(source)}, not the name of a reward", place)
    return Record(
        place,
        _messages(given["prompt"], place),
        _truth(given["ground_truth"], place),
        source.strip(),
        _images(given.get("images"), place),
        _solution(given.get("solution"), place),
        {name: value for name, value in given.items() if name not in (*REQUIRED, *OPTIONAL)},
    )


def _messages(prompt: Any, place: Place) -> tuple[tuple[str, str], ...]:
    if isinstance(prompt, str):
        if not prompt.strip():
            raise _wrong("prompt is empty", place)
        return (("user", prompt),)
    if not isinstance(prompt, list) or not prompt:
        raise _wrong(f"prompt is {_shown(prompt)}, neither a text nor chat messages", place)
    for message in prompt:
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            raise _wrong(f"the chat message {_shown(message)} has not just role and content", place, CHAT_EXAMPLE)
        if not isinstance(message["content"], str) or not message["content"].strip():
            content = _shown(message["content"])
            raise _wrong(f"the content of a chat message is {content}, not a text", place, CHAT_EXAMPLE)
    roles = [message["role"] for message in prompt]
    if roles not in (["user"], ["system", "user"]):
        raise RecipeError(
            f"the roles of the chat messages are {', '.join(map(str, roles))}",
            where=str(place),
            fix="one user message, with a system message before it if you like; put examples into the user's message",
        )
    return tuple((message["role"], message["content"]) for message in prompt)


def _truth(value: Any, place: Place) -> str:
    """The ground truth as text; numbers, lists and objects as JSON."""
    if isinstance(value, str):
        if not value.strip():
            raise _wrong("ground_truth is empty", place)
        return value
    if type(value) is int:
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise _wrong(f"ground_truth is {value}, not a finite number", place)
    if isinstance(value, list | dict) and not value:
        raise _wrong(f"ground_truth is {value!r}, which is empty", place)
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise _wrong(f"ground_truth cannot be written as JSON: {error}", place) from error


def _images(value: Any, place: Place) -> tuple[Any, ...]:
    images = value if isinstance(value, list) else [] if value in (None, "") else [value]
    for image in images:
        inner = (image.get("bytes") or image.get("path")) if isinstance(image, dict) else image
        if not isinstance(inner, str | bytes) or not inner:
            raise _wrong(f"the image {_shown(image)} is neither a path nor a data URI", place)
    return tuple(images)


def _solution(value: Any, place: Place) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _wrong(f"solution is {_shown(value)}, not the text of a response", place)
    return value


def _missing(name: str, raw: Mapping[str, Any], place: Place) -> RecipeError:
    """Which field is missing, and which of those that are there it may be."""
    if name in raw:
        what = f"the field {name} is null"
    else:
        what = f"there is no field {name} (there is {', '.join(map(str, raw)) or 'none'})"
    others = [str(other) for other in raw if other not in (*REQUIRED, *OPTIONAL)]
    alike = [other for other in _USUAL[name] if other in others] or [nearest(name, others, 0.7)]
    hints = [f"rename {alike[0]} to {name}"] if alike[0] else []
    if name == "data_source":
        hints.append("or give one for all rows: --data_source math_reasoning")
    return RecipeError(what, where=str(place), fix="; ".join([*hints, f"a right row: {EXAMPLE}"]))


def _wrong(what: str, place: Place, example: str = EXAMPLE) -> RecipeError:
    return RecipeError(what, where=str(place), fix=f"a right row: {example}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


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


DELIMITERS = ",;\t"
LONGEST_CELL = 16 << 20
BATCH = 1024
CSV_EXAMPLE = 'prompt,ground_truth,data_source\n"What is 17 + 25?",42,math_reasoning'


def read_csv(path: Path) -> Iterator[tuple[Place, Any]]:
    """Every row of a CSV file with a head line; separated by commas, semicolons or tabs.

    Empty cells are fields that the row does not have. A prompt or a list of images may be JSON in its cell.

    Raises:
        RecipeError: no head line, a row of another length, or text that is not UTF-8.
    """
    csv.field_size_limit(LONGEST_CELL)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            head = file.readline()
            file.seek(0)
            delimiter = max(DELIMITERS, key=head.count)
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            yield from _rows(reader, path)
    except UnicodeDecodeError as error:
        raise RecipeError(f"the file is not UTF-8: {error.reason}", where=str(path), fix="save it as UTF-8") from error


def _rows(reader: Any, path: Path) -> Iterator[tuple[Place, Any]]:
    names: list[str] | None = None
    begin = 1
    while True:
        begin = reader.line_num + 1
        place = Place(str(path), begin)
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise RecipeError(
                f"this is not CSV: {error}", where=str(place), fix="put cells with quotes or line breaks into quotes"
            ) from error
        if cells is None:
            break
        if not any(cell.strip() for cell in cells):
            continue
        if names is None:
            names = _head(cells, place)
            continue
        if len(cells) != len(names):
            raise RecipeError(
                f"{len(cells)} cells, but the head line names {len(names)} fields",
                where=str(place),
                fix="put cells with a separator into quotes",
            )
        yield place, {name: _cell(name, cell) for name, cell in zip(names, cells, strict=True) if cell.strip()}


def _head(cells: list[str], place: Place) -> list[str]:
    names = [cell.strip() for cell in cells]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RecipeError(f"the field {twice!r} is there twice", where=str(place), fix="leave one of them")
    if "prompt" not in names and "ground_truth" not in names:
        raise RecipeError(
            f"the head line names {', '.join(names)}, not prompt and ground_truth",
            where=str(place),
            fix=f"a right file: {CSV_EXAMPLE!r}",
        )
    return names


def _cell(name: str, cell: str) -> Any:
    """The text of a cell; chat messages and several images are JSON."""
    if name in ("prompt", "images") and cell.lstrip().startswith("["):
        try:
            value = json.loads(cell)
        except ValueError:
            return cell  # a prompt may well begin with a bracket
        return value if name == "images" or (value and all(isinstance(item, dict) for item in value)) else cell
    return cell


def read_parquet(path: Path) -> Iterator[tuple[Place, Any]]:
    """Every row of a parquet file. Rows that are finished for verl give the fields they were made from.

    Raises:
        RecipeError: a file that is no parquet.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(BATCH):
                for row in batch.to_pylist():
                    number += 1
                    yield Place(str(path), number, "row"), _plain(row)
    except (pa.ArrowException, OSError) as error:
        raise RecipeError(
            f"the file cannot be read as parquet: {str(error).splitlines()[0]}",
            where=str(path),
            fix=f"make it again; or use JSON lines such as {EXAMPLE}",
        ) from error


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    finished = row.get("reward_model")
    if not (isinstance(finished, dict) and "ground_truth" in finished and "ground_truth" not in row):
        return row
    extra = row.get("extra_info") or {}
    kept = {name: row[name] for name in ("prompt", "data_source", "images") if row.get(name) is not None}
    solution = extra.get("solution") if isinstance(extra, dict) else None
    return {**kept, "ground_truth": finished["ground_truth"], **({"solution": solution} if solution else {})}


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


READERS = {
    ".json": read,
    ".jsonl": read,
    ".ndjson": read,
    ".csv": read_csv,
    ".tsv": read_csv,
    ".parquet": read_parquet,
}


def records(paths: list[Path], default_source: str | None = None) -> Iterator[Record]:
    """Every record of the files, checked, in their order.

    Raises:
        RecipeError: a file that is not there, of an unknown kind, or empty; the first record that is wrong.
    """
    for path in paths:
        empty = True
        for place, raw in raw_records(path):
            empty = False
            yield checked(raw, place, default_source)
        if empty:
            raise RecipeError("the file has no records", where=str(path), fix="put at least two into it")


def raw_records(path: Path) -> Iterator[tuple[Place, Any]]:
    """Every record as it stands in the file, with its place."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise RecipeError(
            f"{path.name} is neither JSON, JSONL, CSV nor parquet",
            where=str(path),
            fix=f"use one of the suffixes {', '.join(READERS)}",
        )
    if not path.is_file():
        raise RecipeError(f"the data file {path} does not exist", where="train_files, val_files", fix="mend the path")
    yield from reader(path)
