"""Users' files: JSON, JSON lines, CSV and parquet, read as checked records.

`datasets` and pyarrow give each column of JSON or CSV one type, and report no line numbers. Here a ground truth may
be a text in one record and a list in the next, and a mistake is reported with its line.
"""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from recipes.data.rows import IMAGE_MARK, IMAGES, VIDEOS, conversation_mistake, not_shown, read_rows
from recipes.engines.worked_answers import Message, last_text, messages_of, without_nulls
from recipes.errors import RecipeError, abbreviated, first_line
from recipes.written import DEEPEST, in_json, in_python, is_meant_as_one, is_too_deep, written

WHOLE_FLOAT = re.compile(r"(-?[1-9]\d*|0)\.0")
"""A whole number as pandas writes it where the column had gaps."""
CHAT_BEGINS = re.compile(r"""\s*\[\s*\{\s*['"](role|content|from|value)['"]""")
BOM = b"\xef\xbb\xbf"
CHAT = """write [{"role": "user", "content": "What is 17 + 25?"}]; the user has the last message"""

# Other names of our fields: proposed in an error, never taken without being asked for.
_SYNONYMS = {
    "prompt": ("question", "problem", "instruction", "input", "query", "messages", "text", "问题", "题目", "指令"),
    "ground_truth": (
        "answer",
        "label",
        "target",
        "output",
        "gold",
        "response",
        "completion",
        "answers",
        "答案",
        "回答",
    ),
}


@dataclass(frozen=True)
class Columns:
    """The files' column names for our fields, and what a record needs."""

    prompt: str = "prompt"
    ground_truth: str = "ground_truth"
    images: str = "images"
    data_source: str | None = None  # the source of every record, whatever the file says
    truth_needed: bool = True  # a record without a ground truth is a mistake
    sources: tuple[str, ...] = ()  # data sources that the reward knows; empty where it takes any
    engine: str = "verl"
    videos: str = VIDEOS  # no recipe shows any
    unnamed: str | None = None  # the source of records that name none

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


FIRST = 64  # records at the start of a file, whose fields are taken as its columns
LISTED = 20  # mistakes that the error shows


class Mistakes:
    """All mistakes in users' files, raised as one error; where one has no fix, that is a right row."""

    def __init__(self, columns: Columns = Columns()) -> None:
        self.columns = columns
        self.notes: list[str] = []  # on what is no mistake
        self._count = 0
        self._listed: list[tuple[Place, RecipeError]] = []

    def add(self, error: RecipeError, place: Place) -> None:
        """Note the mistake of a record; the first `LISTED` are shown."""
        self._count += 1
        if len(self._listed) < LISTED:
            self._listed.append((place, error))

    def check(self) -> None:
        """Raise RecipeError with the mistakes, if there are any."""
        if not self._listed:
            return
        listed = sorted(self._listed, key=itemgetter(0))
        (where, first), more = listed[0], self._count - len(listed)
        alone = len({(error.what, error.fix, place.file) for place, error in listed}) == 1
        lines = [f"{self._count:,} records cannot be used"]
        lines += [f"  {place}: {error.what}{error.fix and f'; {error.fix}'}" for place, error in listed]
        lines += [f"  and {more:,} more"] if more else []
        same = [f"{place.unit} {place.number}" for place, _ in listed[1:]] + [f"{more:,} more"] * bool(more)
        others = f"; the same in {', '.join(same)}" if same else ""
        names = self.columns.prompt, self.columns.ground_truth, "data_source"
        right = dict(zip(names, ("What is 17 + 25?", "42", "math_reasoning"), strict=True))
        fix = (alone and first.fix) or f"a right row: {json.dumps(right, ensure_ascii=False)}"
        raise RecipeError(first.what + others if alone else "\n".join(lines), where=str(where), fix=fix) from first


@dataclass(frozen=True)
class Record:
    """A checked record."""

    place: Place
    messages: list[dict[str, str]]  # the last one is the user's question
    chat: bool  # whether the file's prompt is a list of chat messages; if it is a text, `messages` has one message
    ground_truth: str  # JSON where the file has a number, list or object; empty where the record has none
    data_source: str
    images: list[Any]  # paths, data URIs or bytes, in the order of the `<image>` marks in the prompt
    solution: str | list[Message]  # a response that earns the full score, if the file has one; text, or with calls
    id: str  # the record's own, empty where it has none
    # All other columns, nulls too, and the ground truth's if its name is not `ground_truth`, or if it is no text: a
    # reward of TRL's form gets them as they are.
    rest: Mapping[str, Any]
    finished: dict[str, Any] | None  # the whole row, with its truth as it is, where it has verl's columns


def records(paths: Iterable[Path], mistakes: Mistakes) -> Iterator[Record]:
    """Yield every valid record in file order; `mistakes` supplies the column names and collects the invalid records."""
    for path in paths:
        reader = READERS.get(path.suffix.lower())
        if reader is None:
            what = f"{path.name} is neither JSON, JSONL, CSV nor parquet"
            fix = f"use one of {', '.join(READERS)}: unpack a .gz or .zip, save a table as CSV UTF-8, or {TO_PARQUET}"
            raise RecipeError(what, where=str(path), fix=fix)
        found = reader(path, mistakes)
        first = list(islice(found, FIRST))
        there = dict.fromkeys(str(name) for _, raw in first if isinstance(raw, dict) for name in _fields(raw))
        if there and (unmapped := _unmapped(list(there), mistakes.columns)):
            if len(first) == 1:  # of JSON that is one object
                unmapped.fix += f"; where a field holds the rows, write it alone: jq .FIELD {path.name} > rows.json"
            mistakes.add(unmapped, Place(str(path), 0))
            continue
        own = mistakes.columns
        lacking = {own.images, own.videos} - {IMAGES, VIDEOS}  # a record may leave them out, and not all of a file
        for place, raw in chain(first, found):
            lacking -= raw.keys() if isinstance(raw, dict) else set()
            try:
                yield checked(raw, place, own)
            except RecipeError as error:
                mistakes.add(error, place)
        for name in sorted(lacking) if there else ():
            what = f"the file has no column {name}; its columns are {', '.join(there)}"
            fix = "name a column that is there by --image_key or data.video_key, add an empty one, or leave it out"
            mistakes.add(RecipeError(what, fix=fix), Place(str(path), 0))
        if not first:
            mistakes.check()  # a file with a mistake is not an empty one
            fix = "put two records into it: one to train on and one to validate on"
            mistakes.add(RecipeError("the file has no records", fix=fix), Place(str(path), 0))


def checked(raw: Any, place: Place, columns: Columns = Columns()) -> Record:
    """The record behind a row. Raises RecipeError that names the field at fault."""
    if not isinstance(raw, dict):
        raise RecipeError(f"{abbreviated(raw)} is not a record with fields")
    if is_too_deep(raw):
        raise RecipeError(TOO_DEEP.what, fix=TOO_DEEP.fix)
    own = _fields(raw)
    fields = {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in own.items()}
    given = {name: value for name, value in fields.items() if value is not None}
    source = columns.data_source or given.get("data_source") or columns.unnamed
    needed = {name: given.get(name) for name in (columns.prompt, *[columns.ground_truth] * columns.truth_needed)}
    needed["data_source"] = source
    if lacking := next((name for name, value in needed.items() if value is None), None):
        what = f"the field {lacking} is null, or NaN" if lacking in fields else f"there is no field {lacking}"
        raise RecipeError(f"{what} (there is {', '.join(map(str, raw)) or 'none'})")
    if not isinstance(source, str) or not source.strip():
        raise RecipeError(f"data_source is {abbreviated(source)}, not the name of a reward")
    if columns.sources and source.strip() not in columns.sources:
        fix = f"use one of {', '.join(columns.sources)}, for all rows by --data_source"
        raise RecipeError(f"the reward has no rules for the data source {source.strip()!r}", fix=fix)
    truth, solution, finished = given.get(columns.ground_truth), given.get("solution", ""), None
    truth = (isinstance(truth, list) and last_text(truth)) or truth  # a completion of TRL's: its text
    if own is not raw:
        finished = raw | {name: own[name] for name in ("reward_model", "extra_info") if name in raw}
        if columns.engine == "verl" and not isinstance(extra := own.get("extra_info"), dict | None):
            what = f"extra_info is {abbreviated(extra)}, not an object"
            raise RecipeError(what, fix='write an object, {"index": 0}, or rename the field')
        finished["reward_model"] = {**own["reward_model"], "ground_truth": truth}
        solution = solution if isinstance(solution, str) else ""
    if not isinstance(solution, str) and not (isinstance(solution, list) and messages_of(solution)):
        what = f"solution is {abbreviated(solution)}, neither a text nor messages of assistant and tool with texts"
        raise RecipeError(what)
    used = [columns.prompt, columns.images, "data_source", "solution", "id"]
    used += ["reward_model", "extra_info"] if finished else []
    if columns.ground_truth == "ground_truth" and isinstance(fields.get("ground_truth"), str | None):
        used.append("ground_truth")
    named = (columns.prompt, columns.ground_truth, columns.images)
    if mistake := not_shown({name: given[name] for name in given.keys() - {*named}}, columns.videos):
        raise RecipeError(mistake[0], fix=mistake[1])
    prompt = given[columns.prompt]
    chat = _chat(prompt, columns.prompt)
    messages, shown = _messages(chat, columns) if chat else ([{"role": "user", "content": prompt}], [])
    if shown and given.get(columns.images) and written(given[columns.images]) != shown:
        what = f"images stand in {columns.prompt} and in {columns.images}"
        raise RecipeError(what, fix="give them in one of the two")
    shown = written(given.get(columns.images) or shown)
    return Record(
        place,
        messages,
        chat is not None,
        "" if truth is None else _truth(without_nulls(truth), columns.ground_truth),
        source.strip(),
        shown if isinstance(shown, list) else [shown],
        solution,
        _id(given.get("id", "")),
        {name: value for name, value in fields.items() if name not in used},
        finished,
    )


def _fields(raw: dict[str, Any]) -> dict[str, Any]:
    """A record's fields; those of a row of verl's are also its ground truth and its worked answer. Others are `raw`."""
    model, extra = written(raw.get("reward_model")), written(raw.get("extra_info"))
    if not isinstance(model, dict) or "ground_truth" not in model:
        return raw
    solution = extra.get("solution") if isinstance(extra, dict) else None
    opened = {"reward_model": model, **({"extra_info": extra} if "extra_info" in raw else {})}
    truth = raw.get("ground_truth") if model["ground_truth"] in (None, "", [], {}) else None
    return {"solution": solution, **raw, **opened, "ground_truth": model["ground_truth"] if truth is None else truth}


def _chat(prompt: Any, column: str) -> list[Any] | None:
    """The chat messages of a prompt, which may be written as text; None where it is a question."""
    found = written(prompt)
    if isinstance(prompt, str):
        first = found[0] if isinstance(found, list) and found else None
        begins, keys = CHAT_BEGINS.match(prompt), {*first} if isinstance(first, dict) else set[str]()
        if not prompt.strip():
            raise RecipeError(f"{column} is empty")
        if begins and not keys:
            raise RecipeError(f"{column} begins like chat messages, and is neither JSON nor Python", fix=CHAT)
        if not begins and not keys >= {"role", "content"} and not keys >= {"from", "value"}:
            return None
    if not isinstance(found, list) or not found:
        raise RecipeError(f"{column} is {abbreviated(prompt)}, neither a text nor chat messages")
    return found


def _messages(chat: list[Any], columns: Columns) -> tuple[list[dict[str, str]], list[Any]]:
    """Messages of one text each, with `<image>` where a part is an image, and the images that such parts hold."""
    column, images, messages = columns.prompt, list[Any](), list[dict[str, str]]()
    for message in map(without_nulls, chat):
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            keys = ", ".join(map(str, message)) if isinstance(message, dict) else abbreviated(message)
            what = f"{column}: a chat message is to have just role and content, and has {keys}"
            raise RecipeError(what, fix=CHAT)
        content = message["content"]
        if isinstance(content, list):
            content = "".join(_part(part, images, column) for part in content)
        if not isinstance(content, str) or not content.strip():
            what = f"{column}: the content of a chat message is {abbreviated(content)}, not a text"
            raise RecipeError(what, fix=CHAT)
        messages.append({"role": message["role"], "content": content})
    if mistake := conversation_mistake(messages):
        raise RecipeError(f"{column}: {mistake}", fix=CHAT)
    if columns.engine == "easyr1" and sum(message["role"] == "user" for message in messages) > 1:
        raise RecipeError(f"{column} has several turns, and EasyR1 takes one", fix="train with verl: ENGINE=verl")
    return messages, images


def _part(part: Any, images: list[Any], column: str) -> str:
    """The text of a part of a message; an image that it holds is added to `images`."""
    kind = part.get("type") if isinstance(part, dict) else ""
    if kind == "text" and isinstance(part.get("text"), str):
        return part["text"]
    if kind not in ("image", "image_url"):
        raise RecipeError(f"{column}: the part {abbreviated(part)} is neither text nor image", fix=CHAT)
    found = next((part[name] for name in ("image", "image_url", "url", "path") if name in part), None)
    images += [found] * (found is not None)
    return IMAGE_MARK


def whole(value: Any) -> Any:
    """An integer for a whole number that pandas stored as a float, as it does in a column with gaps."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _truth(value: Any, column: str) -> str:
    """The ground truth as text; numbers, lists and objects as JSON."""
    if value in ([], {}) or (isinstance(value, str) and not value.strip()):
        raise RecipeError(f"{column} is {value!r}, which is empty")
    try:
        if isinstance(value, str | Decimal):
            return str(value)
        if isinstance(value, date):
            return str(value).removesuffix(" 00:00:00")  # a day, as pandas keeps it
        return json.dumps(whole(value), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:  # bytes, an infinite number
        what = f"{column} is {abbreviated(value)}, neither text, number, list nor object"
        raise RecipeError(what, fix="write it as text, as the answer is to read") from error


def _id(value: Any) -> str:
    value = whole(value)
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise RecipeError(f"id is {value!r}, neither a text nor a whole number", fix=ID_HINT)
    return str(value)


NOT_UTF8 = RecipeError(
    "this is not UTF-8",
    fix="save it as CSV UTF-8, or: iconv -f GB18030 -t UTF-8 FILE > utf8.csv (UTF-16 for Excel's Unicode text)",
)
TOO_DEEP = RecipeError(
    f"more than {DEEPEST} lists or objects are in one another",
    fix="write the innermost of them as text, or leave them out",
)
TO_PARQUET = "write it with to_parquet('rows.parquet') of pandas or datasets (load_from_disk for a folder)"
ID_HINT = "give every record an id of its own, or rename the field: ids are then made from the content"


def _unmapped(there: list[str], columns: Columns) -> RecipeError | None:
    """The error for missing columns or a data source without rules, with the options that help; None without one."""
    missing, options = [], []
    free = {*there} - {columns.prompt, columns.ground_truth, columns.images}
    for ours, theirs, option in (
        ("prompt", columns.prompt, "--prompt_key"),
        ("ground_truth", columns.ground_truth, "--answer_key"),
    ):
        alike = next((name for other in (ours, *_SYNONYMS[ours]) for name in free if name.casefold() == other), None)
        if theirs not in there and (ours == "prompt" or columns.truth_needed or alike or theirs != ours):
            missing.append(theirs)
            options.append(f"{option} {alike or 'COLUMN'}")
    source = columns.data_source or columns.unnamed
    if source is None and "data_source" not in there:
        missing.append("data_source")
    unknown = source is not None and bool(columns.sources) and source not in columns.sources
    if unknown or "data_source" in missing:
        own = " (or --reward_func with a reward of your own)" if "data_source" in missing else ""
        options.append(f"--data_source {'|'.join(columns.sources) or 'NAME'}{own}")
    if not options:
        return None
    what = [f"the file has no column {', '.join(missing)}; its columns are {', '.join(there)}"] if missing else []
    what += [f"the reward has no rules for the data source {source!r}"] if unknown else []
    return RecipeError("; ".join(what), fix=f"give {' '.join(options)}; or mend the file")


def read_json(path: Path, mistakes: Mistakes) -> Iterator[tuple[Place, Any]]:
    """Yield every record of an array, or of a file with a record on each line, whatever its suffix.

    An object alone, on one line or several, may hold the records: as its only list of objects, or it is one itself.
    Lines are streamed and each mistake is noted; an array is read whole, and a mistake in its JSON ends the file.
    """
    with path.open("rb") as file:
        head = file.read(1 << 16)
        file.seek(0)
        if head.removeprefix(BOM).lstrip()[:1] == b"[":
            for array in _parsed(file.read(), Place(str(path), 1), mistakes):
                yield from ((Place(str(path), number, "record"), record) for number, record in enumerate(array, 1))
            return
        lines = (line.removeprefix(BOM).lstrip() for line in file if line.strip())
        alone = [next(lines, b"")[:1], next(lines, b"")[:1]] != [b"{", b"{"]  # not JSON lines
        file.seek(0)
        for value in _parsed(file.read(), Place(str(path), 1), Mistakes()) if alone else []:
            fields = value if isinstance(value, dict) and mistakes.columns.prompt not in value else {}
            held = [name for name, each in fields.items() if isinstance(each, list) and {*map(type, each)} == {dict}]
            if len(held) == 1:
                mistakes.notes.append(f"{path.name} is one object, whose field {held[0]} holds the rows")
                rows = enumerate(value[held[0]], 1)
                yield from ((Place(str(path), number, "record"), record) for number, record in rows)
            else:
                yield Place(str(path), 1), value
            return
        file.seek(0)
        for number, line in enumerate(file, 1):
            place = Place(str(path), number)
            if text := line.strip().removesuffix(b",").removeprefix(BOM):
                yield from ((place, record) for record in _parsed(text, place, mistakes))


def _parsed(data: bytes, place: Place, mistakes: Mistakes) -> list[Any]:
    """A list of the value of JSON that begins at `place`; an empty list where a mistake is noted with its line."""
    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_object)
        if b"\\ud" in data.lower():
            json.dumps(value, ensure_ascii=False).encode()  # a half of a surrogate pair cannot be written
        return [value]
    except json.JSONDecodeError as error:
        line = place._replace(number=place.number + error.lineno - 1)
        fix = "mend it there; each record stands on a line of its own, or all are in an array: [ ... ]"
        mistakes.add(RecipeError(f"this is not JSON: {error.msg} (character {error.colno})", fix=fix), line)
    except UnicodeDecodeError:
        mistakes.add(NOT_UTF8, place)
    except RecursionError:
        mistakes.add(TOO_DEEP, place)
    except ValueError as error:  # what `json` takes and JSON does not have
        mistakes.add(RecipeError(str(error).split(";")[0], fix="write JSON in UTF-8"), place)
    return []


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the field {next(name for name in names if names.count(name) > 1)} is given twice")
    return fields


def read_csv(path: Path, mistakes: Mistakes) -> Iterator[tuple[Place, Any]]:
    """Yield every row of a CSV file with a header line, and commas, semicolons or tabs; empty cells are null."""
    csv.field_size_limit(16 << 20)
    names: list[str] = []
    place, long = Place(str(path), 1), None  # `long`: the first row of several lines
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            head = file.readline()
            separator = max(",;\t", key=head.count)
            file.seek(0)
            reader = csv.reader(file, delimiter=separator, strict=True)
            for cells in reader:
                if reader.line_num > place.number:
                    long = long or place
                try:
                    if not names and cells == ["sep=", ""]:
                        pass  # Excel's line that names the separator
                    elif any(cell.strip() for cell in cells) and not names:
                        names = [cell.strip() for cell in cells]
                        _object([(name, None) for name in names if name])  # Excel saves empty columns, too
                    elif len(cells) == len(names):
                        row = dict(zip(names, cells, strict=True))
                        yield place, {name: _cell(name, cell, mistakes.columns) for name, cell in row.items()}
                    elif any(cell.strip() for cell in cells):
                        what = f"{len(cells)} cells, but the head line names {len(names)} fields"
                        raise RecipeError(what, fix="put cells with a separator into quotes")
                except RecipeError as error:
                    mistakes.add(error, place)
                place = Place(str(path), reader.line_num + 1)
            file.seek(0)
            if long and all(line.count(separator) == head.count(separator) for line in file if line.strip()):
                fix = 'write each " of a text as "", and the whole cell in quotes'
                mistakes.add(RecipeError("a quote joins lines that are rows of their own", fix=fix), long)
    except UnicodeDecodeError:
        mistakes.add(NOT_UTF8, place)
    except (ValueError, csv.Error) as error:  # a field twice, quotes
        fix = "save it with each field once, and with cells that have quotes or line breaks in quotes"
        mistakes.add(RecipeError(f"this is not CSV: {error}", fix=fix), place)


def _cell(name: str, cell: str, columns: Columns) -> Any:
    """The value of a cell: null where it is empty; a ground truth may be a list or object as Python prints it."""
    if not cell.strip():
        return None
    if name == columns.ground_truth and in_json(cell) is None:
        printed = in_python(cell)
        if printed is None and is_meant_as_one(cell):
            what = f"{name} is {abbreviated(cell)}, which begins like a list or object and is none"
            raise RecipeError(what, fix="""write JSON, for instance ["red", "dark red"]""")
        cell = cell.removesuffix(".0") if WHOLE_FLOAT.fullmatch(cell) else cell
        return cell if printed is None else printed
    return cell


def read_parquet(path: Path, mistakes: Mistakes) -> Iterator[tuple[Place, Any]]:
    """Yield every row of a parquet file."""
    try:
        _object([(name, None) for name in pq.read_schema(path).names])
        for number, row in enumerate(read_rows(path, at_once=1024), 1):
            yield Place(str(path), number, "row"), row
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: a column twice
        what = f"the file cannot be read as parquet: {first_line(error)}"
        mistakes.add(RecipeError(what, fix="make it again, or use JSON lines"), Place(str(path), 0))


READERS = dict.fromkeys((".json", ".jsonl", ".ndjson"), read_json) | dict.fromkeys((".csv", ".tsv"), read_csv)
READERS |= {".parquet": read_parquet}
