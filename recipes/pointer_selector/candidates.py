"""The file of logged candidates: read as a stream, one query at a time, and checked field by field.

The file is one JSON object, {query id: record, ...}, of any size. Every error names the query.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from recipes.errors import RecipeError

METHODS = ("beam", "sample", "random", "other")
SCORES = ("beam_score", "logprob_score", "vqa_correct", "vqa_acc_score", "vqa_gt_prob")
"""The numbers that a candidate may carry; an absent one is kept as NaN, and only a reward that reads it asks for it."""
SPLITS = ("train", "validation", "test")
LARGEST = 1e30
"""Numbers beyond this are no scores, and float32 would make them infinite."""
CHUNK = 1 << 20
Item = int | str


@dataclass(frozen=True)
class Candidate:
    """A logged sequence of examples: their ids in order, how it was made, its numbers in the order of `SCORES`."""

    pointer: tuple[Item, ...]
    method: str
    scores: tuple[float, ...]
    fallback: bool
    failed: bool


@dataclass(frozen=True)
class Record:
    """A query: its own pool (None where all queries share one), its candidates, and its split where the file has one.

    `embedding` is the id of its embedding: the query's own id, unless several queries share one.
    """

    query_id: str
    embedding: Item
    candidates: list[Candidate]
    pool: list[Item] | None
    split: str | None


def stream_entries(path: str | Path) -> Iterator[tuple[str, Any]]:
    """The (key, value) pairs of a JSON object, in order; a key that stands twice is an error.

    Memory is that of the largest entry plus about 1 MiB, and of the keys.
    """
    path = Path(path)
    if not path.is_file():
        raise RecipeError(f"there is no file {path}", where="data.candidates", fix="prepare the data, or mend the path")
    seen: set[str] = set()
    with path.open(encoding="utf-8") as file:
        window = _Window(file, str(path))
        window.expect("{")
        if window.peek() == "}":
            raise RecipeError("the file holds no query", where=str(path), fix="prepare the data again")
        while True:
            if window.peek() != '"':
                window.expect('"')
            key = window.value()
            if key in seen:
                raise RecipeError(
                    f"query {key!r} stands in the file twice", where=str(path), fix="merge its candidates"
                )
            seen.add(key)
            window.last_key = key
            window.expect(":")
            yield key, window.value()
            if window.expect(",}") == "}":
                break
        if window.peek():
            raise RecipeError("there is text behind the end of the JSON object", where=str(path))


class _Window:
    """The part of the text that has been read and not yet been parsed.

    ijson streams too, but it refuses the NaN that Python's json writes, takes a list for an empty object, and fills the
    memory where the nesting is deep.
    """

    def __init__(self, file: TextIO, source: str) -> None:
        self.file, self.source = file, source
        self.text, self.at, self.chunk, self.ended = "", 0, CHUNK, False
        self.last_key: str | None = None
        self.decoder = json.JSONDecoder()

    def more(self) -> bool:
        """Read on; false at the end of the file."""
        try:
            data = self.file.read(self.chunk)
        except UnicodeDecodeError as error:
            raise RecipeError(
                f"the file is not text in UTF-8 after query {self.last_key!r}: {error.reason}",
                where=self.source,
                fix="give the JSON file with the candidates",
            ) from error
        self.ended = not data
        self.text, self.at = self.text[self.at :] + data, 0
        return bool(data)

    def peek(self) -> str:
        """The next character that is not white space, or "" at the end."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in " \t\r\n":
                self.at += 1
            if self.at < len(self.text) or not self.more():
                return self.text[self.at : self.at + 1]

    def expect(self, characters: str) -> str:
        """Consume the next character, which must be one of `characters`."""
        character = self.peek()
        if not character:
            raise self.truncated()
        if character not in characters:
            raise RecipeError(
                f"expected one of {' '.join(characters)} but found {character!r} after query {self.last_key!r}",
                where=self.source,
                fix="the file must be one JSON object, {query id: record, ...}",
            )
        self.at += 1
        return character

    def value(self) -> Any:
        """The next JSON value; reads on until it is whole."""
        self.peek()
        while True:
            try:
                value, end = self.decoder.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                if self.ended:
                    raise self.truncated() from error
                self.chunk *= 2
                self.more()
                continue
            except RecursionError as error:
                raise RecipeError(
                    f"the JSON is nested too deep in or after query {self.last_key!r}", where=self.source
                ) from error
            if end == len(self.text) and not self.ended:
                self.more()  # a number may go on in what has not been read yet
                continue
            self.at, self.chunk = end, CHUNK
            return value

    def truncated(self) -> RecipeError:
        place = f"in or after query {self.last_key!r}" if self.last_key is not None else "before its first query"
        return RecipeError(
            f"the JSON is cut off or malformed {place}",
            where=self.source,
            fix="copy or generate the file again; nothing of it was used",
        )


def parse_record(query_id: str, value: Any, *, source: str) -> Record:
    """A record of either layout.

    Args:
        query_id: the key under which the record stands.
        value: `{"pointer_candidates": [...]}`, or the older `{"id_list": [[..., query id]], "score_list": [...]}`;
            `pool` (ids of the examples that this query may be given), `split` and `embedding_id` (where it is not the
            query's id) are optional in both.
        source: the file, for messages.

    Raises:
        RecipeError: the record is not of either layout, a pick is repeated, or a number is not finite.
    """
    where = f"{source}, query {query_id!r}"
    if not isinstance(value, dict):
        raise RecipeError(f"query {query_id!r} holds {type(value).__name__}, not an object", where=where)
    if "pointer_candidates" in value:
        entries = _list(value["pointer_candidates"], "pointer_candidates", where, query_id)
        candidates = [_candidate(entry, f"{where}, candidate {n}", query_id) for n, entry in enumerate(entries)]
    elif "id_list" in value:
        candidates = _older_layout(query_id, value, where)
    else:
        raise RecipeError(
            f"query {query_id!r} has neither pointer_candidates nor id_list; its keys are {sorted(value)}",
            where=where,
            fix="give every query its logged candidates",
        )
    if not candidates:
        raise RecipeError(f"query {query_id!r} has no candidates", where=where, fix="remove it, or log some for it")
    pool = _ids(value["pool"], "pool", where, query_id) if "pool" in value else None
    if pool is not None and len(set(pool)) != len(pool):
        raise RecipeError(f"the pool of query {query_id!r} holds an example twice", where=where)
    embedding = _ids([value.get("embedding_id", query_id)], "embedding_id", where, query_id)[0]
    split = value.get("split")
    if split is not None and split not in SPLITS:
        raise RecipeError(
            f"query {query_id!r} is in split {split!r}", where=where, fix=f"use one of {', '.join(SPLITS)}"
        )
    return Record(query_id, embedding, candidates, pool, split)


def _list(value: Any, name: str, where: str, query_id: str) -> list:
    if not isinstance(value, list):
        raise RecipeError(f"{name} of query {query_id!r} is {type(value).__name__}, not a list", where=where)
    return value


def _ids(value: Any, name: str, where: str, query_id: str) -> list[Item]:
    ids = _list(value, name, where, query_id)
    if not all(isinstance(item, int | str) and not isinstance(item, bool) for item in ids):
        raise RecipeError(f"{name} of query {query_id!r} holds something other than ids: {ids}", where=where)
    return ids


def _candidate(entry: Any, where: str, query_id: str) -> Candidate:
    if not isinstance(entry, dict) or "pointer" not in entry:
        raise RecipeError(f"a candidate of query {query_id!r} has no pointer", where=where)
    mode = entry.get("vqa_eval_mode")
    return Candidate(
        pointer=_pointer(entry["pointer"], where, query_id),
        method=entry.get("gen_method") if entry.get("gen_method") in METHODS else "other",
        scores=tuple(_number(entry.get(name), name, where, query_id) for name in SCORES),
        fallback=mode == "fallback",
        failed=bool(entry.get("eval_failed")) or mode == "error",
    )


def _pointer(value: Any, where: str, query_id: str) -> tuple[Item, ...]:
    picks = tuple(_ids(value, "pointer", where, query_id))
    if not picks:
        raise RecipeError(f"a pointer of query {query_id!r} is empty", where=where)
    if len(set(picks)) != len(picks):
        raise RecipeError(
            f"query {query_id!r} picks an example twice: {list(picks)}",
            where=where,
            fix="examples are chosen without replacement; drop this candidate",
        )
    return picks


def _number(value: Any, name: str, where: str, query_id: str) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool):
        return float(value)
    if not isinstance(value, int | float) or not abs(value) <= LARGEST:
        raise RecipeError(
            f"{name} of query {query_id!r} is {value!r}",
            where=where,
            fix="write a finite number, or leave the key out; mark failed evaluations with eval_failed",
        )
    if name == "vqa_correct" and value not in (0, 1):
        raise RecipeError(f"vqa_correct of query {query_id!r} is {value!r}, not 0 or 1", where=where)
    if name in ("vqa_acc_score", "vqa_gt_prob") and not 0 <= value <= 1:
        raise RecipeError(f"{name} of query {query_id!r} is {value!r}, outside 0 to 1", where=where)
    return float(value)


def _older_layout(query_id: str, value: dict, where: str) -> list[Candidate]:
    ids = _list(value["id_list"], "id_list", where, query_id)
    scores = _list(value.get("score_list"), "score_list", where, query_id)
    if len(ids) != len(scores):
        raise RecipeError(
            f"query {query_id!r} has {len(ids)} sequences in id_list and {len(scores)} numbers in score_list",
            where=where,
        )
    rows = [_list(row, "a row of id_list", where, query_id) for row in ids]
    ends_in_query = all(row and str(row[-1]) == query_id for row in rows)
    candidates = []
    for row, score in zip(rows, scores, strict=True):
        numbers = (_number(score, "beam_score", where, query_id), *[math.nan] * (len(SCORES) - 1))
        pointer = _pointer(row[:-1] if ends_in_query else row, where, query_id)
        candidates.append(Candidate(pointer, "beam", numbers, fallback=False, failed=False))
    return candidates
