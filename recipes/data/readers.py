"""Users' files: JSON, JSON lines, CSV and parquet, read as checked records.

`datasets` and pyarrow give each column of JSON or CSV one type, and report no line numbers. Here a ground truth may
be a text in one record and a list in the next, and a mistake is reported with its line. So JSON and CSV are read with
the standard library's `json` and `csv`.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from recipes import pictures
from recipes.data.rows import conversation_mistake, read_rows
from recipes.errors import RecipeError

WHOLE_FLOAT = re.compile(r"(-?[1-9]\d*|0)\.0")
BOM = b"\xef\xbb\xbf"
CHAT = """write [{"role": "user", "content": "What is 17 + 25?"}]; the user has the last message"""

# Other names of our fields: proposed in an error, never taken without being asked for.
_SYNONYMS = {
    "prompt": ("question", "problem", "instruction", "input", "query", "messages", "text"),
    "ground_truth": ("answer", "label", "target", "output", "gold", "response", "completion", "answers"),
}


@dataclass(frozen=True)
class Columns:
    """The files' column names for our fields, and what a record needs."""

    prompt: str = "prompt"
    ground_truth: str = "ground_truth"
    images: str = "images"
    data_source: str | None = None  # the source of records that name none
    truth_needed: bool = True  # a record without a ground truth is a mistake
    sources: tuple[str, ...] = ()  # data sources that the reward knows; empty where it takes any
    turns: bool = True  # a prompt may have several messages of the user, which EasyR1 does not take
    whole_truths: bool = False  # whether a truth 7.0 in a CSV file is 7, see `has_whole_truths`

    def __post_init__(self) -> None:
        """Raise RecipeError if one column is given for two fields."""
        names = [self.prompt, self.ground_truth, self.images]
        if twice := next((name for name in names if names.count(name) > 1), None):
            keys, fix = "data.prompt_key, data.answer_key, data.image_key", "name one column for each"
            raise RecipeError(f"the column {twice} is given for two fields", where=keys, fix=fix)


class Place(NamedTuple):
    """The place of a record: file, and line, row (parquet) or record (JSON array), from 1; 0 is the whole file."""

    file: str
    number: int
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.number}" if self.number else self.file


class RecordError(RecipeError):
    """A record that cannot be used. If the error has no `fix`, `Mistakes` shows a right row instead."""

    def __init__(self, what: str, place: Place, fix: str = "") -> None:
        self.place = place
        super().__init__(what, where=str(place), fix=fix)


FIRST = 64  # records at the start of a file, whose fields are taken as its columns
LISTED = 20  # mistakes that the error shows


class Mistakes:
    """All mistakes in users' files, raised as one error; its example row has the files' column names."""

    def __init__(self, columns: Columns = Columns()) -> None:
        self.columns = columns
        self._count = 0
        self._listed: list[RecordError] = []

    def add(self, error: RecordError) -> None:
        """Note a mistake; the first `LISTED` are shown."""
        self._count += 1
        self._listed += [error] * (len(self._listed) < LISTED)

    def check(self) -> None:
        """Raise RecipeError with the mistakes, if there are any."""
        if not self._listed:
            return
        listed = sorted(self._listed, key=lambda error: error.place)
        first, more = listed[0], self._count - len(listed)
        lines = [f"  {error.where}: {error.what}{error.fix and f'; {error.fix}'}" for error in listed]
        lines += [f"  and {more:,} more"] if more else []
        names = self.columns.prompt, self.columns.ground_truth, "data_source"
        right = dict(zip(names, ("What is 17 + 25?", "42", "math_reasoning"), strict=True))
        raise RecipeError(
            first.what if self._count == 1 else "\n".join([f"{self._count:,} records cannot be used", *lines]),
            where=first.where,
            fix=(self._count == 1 and first.fix) or f"a right row: {json.dumps(right, ensure_ascii=False)}",
        ) from first


@dataclass(frozen=True)
class Record:
    """A checked record."""

    place: Place
    messages: list[dict[str, str]]  # the last one is the user's question
    chat: bool  # whether the file's prompt is a list of chat messages; if it is a text, `messages` has one message
    ground_truth: str  # JSON where the file has a number, list or object; empty where the record has none
    data_source: str
    images: list[Any]  # paths, data URIs or bytes, in the order of the `<image>` marks in the prompt
    solution: str  # a response that earns the full score, if the file has one
    id: str  # the record's own, empty where it has none
    # All other columns, nulls too, and the ground truth's if its name is not `ground_truth`, or if it is no text: a
    # reward of TRL's form gets them as they are.
    rest: Mapping[str, Any]


def records(paths: Iterable[Path], mistakes: Mistakes) -> Iterator[Record]:
    """Yield every valid record in file order; `mistakes` supplies the column names and collects the invalid records."""
    for path in paths:
        reader = READERS.get(path.suffix.lower())
        if reader is None:
            what, fix = f"{path.name} is neither JSON, JSONL, CSV nor parquet", f"use one of {', '.join(READERS)}"
            raise RecipeError(what, where=str(path), fix=fix)
        found = reader(path, mistakes)
        first = list(islice(found, FIRST))
        there = dict.fromkeys(str(name) for _, raw in first if isinstance(raw, dict) for name in raw)
        if there and (unmapped := _unmapped(list(there), path, mistakes.columns)):
            mistakes.add(unmapped)
            continue
        for place, raw in chain(first, found):
            try:
                yield checked(raw, place, mistakes.columns)
            except RecordError as error:
                mistakes.add(error)
        if not first:
            mistakes.check()  # a file with a mistake is not an empty one
            fix = "put two records into it: one to train on and one to validate on"
            mistakes.add(RecordError("the file has no records", Place(str(path), 0), fix))


def checked(raw: Any, place: Place, columns: Columns = Columns()) -> Record:
    """Return the record behind a JSON value. Raises RecordError that names the place, and the field at fault."""
    if not isinstance(raw, dict):
        raise RecordError(f"{_abbreviated(raw)} is not a record with fields", place)
    raw = {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in raw.items()}
    given = {name: value for name, value in raw.items() if value is not None}
    given.setdefault("data_source", columns.data_source)
    for name in (columns.prompt, *([columns.ground_truth] if columns.truth_needed else []), "data_source"):
        if given.get(name) is None:
            what = f"the field {name} is null" if name in raw else f"there is no field {name}"
            raise RecordError(f"{what} (there is {', '.join(map(str, raw)) or 'none'})", place)
    prompt, source, solution = given[columns.prompt], given["data_source"], given.get("solution", "")
    if not isinstance(source, str) or not source.strip():
        raise RecordError(f"data_source is {_abbreviated(source)}, not the name of a reward", place)
    if columns.sources and source.strip() not in columns.sources:
        what = f"the reward has no rules for the data source {source.strip()!r}"
        raise RecordError(what, place, f"use one of {', '.join(columns.sources)}")
    if not isinstance(solution, str):
        raise RecordError(f"solution is {_abbreviated(solution)}, not the text of a response", place)
    used = [columns.prompt, columns.images, "data_source", "solution", "id"]
    if columns.ground_truth == "ground_truth" and isinstance(raw.get("ground_truth"), str | None):
        used.append("ground_truth")
    return Record(
        place,
        _messages(prompt, columns, place),
        isinstance(prompt, list),
        _truth(given[columns.ground_truth], columns.ground_truth, place) if columns.ground_truth in given else "",
        source.strip(),
        shown if isinstance(shown := given.get(columns.images) or [], list) else [shown],
        solution,
        _id(given.get("id", ""), place),
        {name: value for name, value in raw.items() if name not in used},
    )


def _messages(prompt: Any, columns: Columns, place: Place) -> list[dict[str, str]]:
    column = columns.prompt
    if isinstance(prompt, str):
        if not prompt.strip():
            raise RecordError(f"{column} is empty", place)
        return [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list) or not prompt:
        raise RecordError(f"{column} is {_abbreviated(prompt)}, neither a text nor chat messages", place)
    for message in prompt:
        what = ""
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            what = f"{column}: the chat message {_abbreviated(message)} has not just role and content"
        elif not isinstance(message["content"], str) or not message["content"].strip():
            what = f"{column}: the content of a chat message is {_abbreviated(message['content'])}, not a text"
        if what:
            raise RecordError(what, place, CHAT)
    if mistake := conversation_mistake(prompt):
        raise RecordError(f"{column}: {mistake}", place, CHAT)
    if not columns.turns and sum(message["role"] == "user" for message in prompt) > 1:
        raise RecordError(f"{column} has several turns, and EasyR1 takes one", place, "train with verl: ENGINE=verl")
    return prompt


def whole(value: Any) -> Any:
    """Return an integer for a whole number that pandas stored as a float, as it does in a column with gaps."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _truth(value: Any, column: str, place: Place) -> str:
    """The ground truth as text; numbers, lists and objects as JSON."""
    if isinstance(value, str):
        if not value.strip():
            raise RecordError(f"{column} is empty", place)
        return value
    if isinstance(value, float) and not math.isfinite(value):
        raise RecordError(f"{column} is {value}, not a finite number", place)
    if isinstance(value, list | dict) and not value:
        raise RecordError(f"{column} is {value!r}, which is empty", place)
    try:
        return json.dumps(whole(value), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RecordError(f"{column} cannot be written as JSON: {error}", place) from error


def _id(value: Any, place: Place) -> str:
    value = whole(value)
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise RecordError(f"id is {value!r}, neither a text nor a whole number", place, ID_HINT)
    return str(value)


ID_HINT = "give every record an id of its own, or rename the field: ids are then made from the content"


def _unmapped(there: list[str], path: Path, columns: Columns) -> RecordError | None:
    """Return the error that names the missing columns, or a data source unknown to the reward, and the options that
    help; None where nothing is wrong."""
    missing, options = [], []
    free = {*there} - {columns.prompt, columns.ground_truth, columns.images}
    for ours, theirs, option in (
        ("prompt", columns.prompt, "--prompt_key"),
        ("ground_truth", columns.ground_truth, "--answer_key"),
    ):
        alike = next((other for other in _SYNONYMS[ours] if other in free), None)
        if theirs not in there and (ours == "prompt" or columns.truth_needed or alike or theirs != ours):
            missing.append(theirs)
            options.append(f"{option} {alike or 'COLUMN'}")
    source = columns.data_source
    if source is None and "data_source" not in there:
        missing.append("data_source")
    unknown = source is not None and bool(columns.sources) and source not in columns.sources
    if unknown or "data_source" in missing:
        options.append(f"--data_source {'|'.join(columns.sources) or 'NAME'}")
    if not options:
        return None
    what = [f"the file has no column {', '.join(missing)}; its columns are {', '.join(there)}"] if missing else []
    what += [f"the reward has no rules for the data source {source!r}"] if unknown else []
    return RecordError("; ".join(what), Place(str(path), 0), f"give {' '.join(options)}; or mend the file")


def _abbreviated(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_json(path: Path, mistakes: Mistakes) -> Iterator[tuple[Place, Any]]:
    """Yield every record of an array, or of a file with a record on each line, whatever its suffix.

    Lines are streamed and each mistake is noted; an array is read whole, and a mistake in its JSON ends the file.
    """
    with path.open("rb") as file:
        head = file.read(1 << 16)
        file.seek(0)
        if head.removeprefix(BOM).lstrip()[:1] == b"[":
            try:
                for number, record in enumerate(_parsed(file.read(), Place(str(path), 1)), 1):
                    yield Place(str(path), number, "record"), record
            except RecordError as error:
                mistakes.add(error)
            return
        for number, line in enumerate(file, 1):
            place = Place(str(path), number)
            try:
                if text := line.strip().removesuffix(b",").removeprefix(BOM):
                    yield place, _parsed(text, place)
            except RecordError as error:
                mistakes.add(error)


def _parsed(data: bytes, place: Place) -> Any:
    """Parse JSON that begins at `place`. Raises RecordError with the line of the mistake."""
    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_object, parse_constant=_constant)
        if b"\\ud" in data.lower():
            json.dumps(value, ensure_ascii=False).encode()  # a half of a surrogate pair cannot be written
        return value
    except json.JSONDecodeError as error:
        line = place._replace(number=place.number + error.lineno - 1)
        fix = "put each record on a line of its own, or all into an array: [ ... ]"
        raise RecordError(f"this is not JSON: {error.msg} at character {error.colno}", line, fix) from error
    except (ValueError, RecursionError) as error:  # not UTF-8, or what `json` takes and JSON does not have
        raise RecordError(str(error).split(";")[0], place, "write JSON in UTF-8") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the field {next(name for name in names if names.count(name) > 1)} is given twice")
    return fields


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no number that JSON knows")


def read_csv(path: Path, mistakes: Mistakes) -> Iterator[tuple[Place, Any]]:
    """Yield every row of a CSV file with a header line and commas, semicolons or tabs as separators.

    Empty cells are null. A prompt or a list of images may be JSON in its cell.
    """
    csv.field_size_limit(16 << 20)
    names: list[str] = []
    place = Place(str(path), 1)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            head = file.readline()
            file.seek(0)
            reader = csv.reader(file, delimiter=max(",;\t", key=head.count), strict=True)
            for cells in reader:
                if any(cell.strip() for cell in cells):
                    if not names:
                        names = [cell.strip() for cell in cells]
                        _object([(name, None) for name in names])
                    elif len(cells) == len(names):
                        row = zip(names, cells, strict=True)
                        yield place, {name: _cell(name, cell, mistakes.columns) for name, cell in row}
                    else:
                        what = f"{len(cells)} cells, but the head line names {len(names)} fields"
                        mistakes.add(RecordError(what, place, "put cells with a separator into quotes"))
                place = Place(str(path), reader.line_num + 1)
    except (ValueError, csv.Error) as error:  # not UTF-8, a field twice, quotes
        fix = "save it as UTF-8, each field once, with cells that have quotes or line breaks in quotes"
        mistakes.add(RecordError(f"this is not CSV: {error}", place, fix))


def _cell(name: str, cell: str, columns: Columns) -> Any:
    """Return the value of a cell; chat messages and several images are JSON."""
    if name in (columns.prompt, columns.images) and cell.lstrip().startswith("["):
        try:
            value = json.loads(cell)
        except (ValueError, RecursionError):
            return cell  # a prompt may well begin with a bracket
        return value if name == columns.images or (value and all(isinstance(item, dict) for item in value)) else cell
    if name == columns.ground_truth and columns.whole_truths:
        cell = cell.removesuffix(".0")
    return cell if cell.strip() else None


def has_whole_truths(paths: Iterable[Path], columns: Columns) -> bool:
    """Whether the CSV files among these have truths like 7.0 alone: pandas writes 7 so where the column had gaps."""
    files = [path for path in paths if READERS.get(path.suffix.lower()) is read_csv and path.is_file()]
    truths = (row.get(columns.ground_truth) for path in files for _, row in read_csv(path, Mistakes(columns)))
    return bool(files) and all(truth is None or WHOLE_FLOAT.fullmatch(truth) for truth in truths)


def read_parquet(path: Path, mistakes: Mistakes) -> Iterator[tuple[Place, Any]]:
    """Yield every row of a parquet file; rows in verl's format are converted back to prompt, truth and images."""
    import pyarrow as pa

    try:
        for number, row in enumerate(read_rows(path, at_once=1024), 1):
            yield Place(str(path), number, "row"), _plain(row)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        what = f"the file cannot be read as parquet: {str(error).splitlines()[0]}"
        mistakes.add(RecordError(what, Place(str(path), 0), "make it again, or use JSON lines"))


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    finished, extra = row.get("reward_model"), row.get("extra_info")
    if not (isinstance(finished, dict) and "ground_truth" in finished and "ground_truth" not in row):
        return row
    solution = extra.get("solution") if isinstance(extra, dict) else None
    kept = {name: row.get(name) for name in ("prompt", "data_source", "images")}
    return {**kept, "ground_truth": finished["ground_truth"], "solution": solution or None}


READERS = {
    ".json": read_json,
    ".jsonl": read_json,
    ".ndjson": read_json,
    ".csv": read_csv,
    ".tsv": read_csv,
    ".parquet": read_parquet,
}


def image_bytes(image: Any, place: Place, files: pictures.Files) -> bytes:
    """`pictures.read` from the folder of the record's file; raises RecordError."""
    try:
        return pictures.read(image, Path(place.file).parent, files)
    except RecipeError as error:
        raise RecordError(error.what, place, error.fix) from error
