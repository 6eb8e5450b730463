"""The file of logged candidates, one JSON object {query id: record, ...}: read as a stream and checked field by field.

Every error names the query.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from recipes.errors import RecipeError

METHODS = ("beam", "sample", "random", "other")
SCORES = ("beam_score", "logprob_score", "vqa_correct", "vqa_acc_score", "vqa_gt_prob")
"""The numbers that a candidate may carry; an absent one is kept as NaN, and only a reward that reads it asks for it."""
SPLITS = ("train", "validation", "test")
CHUNK = 1 << 20

Item = int | str
Score = Annotated[float, Field(ge=-1e30, le=1e30)]  # float32 makes larger numbers infinite
Share = Annotated[float, Field(ge=0, le=1)]


class _Logged(BaseModel):
    """Strict types; keys that nothing here reads are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


def _distinct(items: list[Item] | None, info: ValidationInfo) -> list[Item] | None:
    if items is not None and len(set(items)) != len(items):
        raise ValueError(f"holds an example twice; {info.field_name} is without replacement")
    return items


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


class Candidate(_Logged):
    """A logged sequence of examples: their ids in order, how it was made, and its numbers."""

    pointer: Annotated[list[Item], Field(min_length=1)]
    gen_method: Any = None
    beam_score: Score | None = None
    logprob_score: Score | None = None
    vqa_correct: Annotated[Share, Field(multiple_of=1), BeforeValidator(_number)] | None = None
    vqa_acc_score: Share | None = None
    vqa_gt_prob: Share | None = None
    vqa_eval_mode: Any = None
    eval_failed: Any = False

    _distinct = field_validator("pointer")(_distinct)

    @property
    def method(self) -> int:
        """Index into `METHODS`."""
        return METHODS.index(self.gen_method if self.gen_method in METHODS else "other")

    @property
    def scores(self) -> list[float]:
        """In the order of `SCORES`; NaN where there is none."""
        values = (getattr(self, name) for name in SCORES)
        return [math.nan if value is None else float(value) for value in values]

    @property
    def fallback(self) -> bool:
        return self.vqa_eval_mode == "fallback"

    @property
    def failed(self) -> bool:
        return bool(self.eval_failed) or self.vqa_eval_mode == "error"


class Record(_Logged):
    """A query: its own pool (None where all queries share one), its candidates, and its split where the file has one.

    `embedding_id` is the id of its embedding, where several queries share one; None for the query's own id.
    """

    pointer_candidates: Annotated[list[Candidate], Field(min_length=1)]
    pool: list[Item] | None = None
    embedding_id: Item | None = None
    split: Literal["train", "validation", "test"] | None = None

    _distinct = field_validator("pool")(_distinct)


class _OlderRecord(_Logged):
    """The layout of beam search's own files; a row of ids may end in the query's id."""

    id_list: list[Annotated[list[Item], Field(min_length=1)]]
    score_list: list[float]


def parse_record(query_id: str, value: Any, *, source: str) -> Record:
    """A record of either layout: `pointer_candidates`, or the older `id_list` with `score_list`.

    Raises:
        RecipeError: the record is of neither layout, a pick is repeated, or a number is missing or not finite.
    """
    try:
        if isinstance(value, dict) and "id_list" in value and "pointer_candidates" not in value:
            value = {**value, "pointer_candidates": _converted(query_id, _OlderRecord.model_validate(value), source)}
        return Record.model_validate(value)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        known = {*Record.model_fields, *Candidate.model_fields, *_OlderRecord.model_fields}
        names = [part for part in detail["loc"] if part in known]
        numbers = [part for part in detail["loc"] if isinstance(part, int)]
        problem = detail["msg"].removeprefix("Value error, ")
        raise RecipeError(
            f"{names[-1] if names else 'the record'} of query {query_id!r} is {_short(detail['input'])}: "
            f"{'ids are whole numbers or text' if 'int' in detail['loc'] else problem}",
            where=f"{source}, query {query_id!r}" + (f", candidate {numbers[0]}" if numbers else ""),
            fix="mend it, or leave the candidate out; mark failed evaluations with eval_failed",
        ) from error


def _converted(query_id: str, older: _OlderRecord, source: str) -> list[dict[str, Any]]:
    if len(older.id_list) != len(older.score_list):
        raise RecipeError(
            f"query {query_id!r} has {len(older.id_list)} sequences in id_list and {len(older.score_list)} numbers in "
            "score_list",
            where=source,
        )
    end = -1 if all(str(row[-1]) == query_id for row in older.id_list) else None
    pairs = zip(older.id_list, older.score_list, strict=True)
    return [{"pointer": row[:end], "gen_method": "beam", "beam_score": score} for row, score in pairs]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def stream_entries(path: str | Path) -> Iterator[tuple[str, Any]]:
    """The (key, value) pairs of a JSON object, in order; a key that stands twice is an error.

    Memory is that of the largest entry plus about 1 MiB, and of the keys. ijson streams too, but it refuses the NaN
    that Python's json writes, takes a list for an empty object, and fills the memory where the nesting is deep.
    """
    path = Path(path)
    if not path.is_file():
        raise RecipeError(f"there is no file {path}", where="data.candidates", fix="prepare the data, or mend the path")
    seen: set[str] = set()
    with path.open(encoding="utf-8") as file:
        window = _Window(file, str(path))
        window.expect("{")
        if window.peek() == "}":
            raise window.error("the file holds no query")
        while True:
            window.expect('"', consume=False)
            key = window.value()
            if key in seen:
                raise window.error(f"query {key!r} stands in the file twice")
            seen.add(key)
            window.last_key = key
            window.expect(":")
            yield key, window.value()
            if window.expect(",}") == "}":
                break
        if window.peek():
            raise window.error("there is text behind the end of the JSON object")


@dataclass
class _Window:
    """The part of the text that has been read and not yet been parsed."""

    file: TextIO
    source: str
    text: str = ""
    at: int = 0
    chunk: int = 0
    ended: bool = False
    last_key: str | None = None

    def error(self, what: str) -> RecipeError:
        return RecipeError(
            what, where=self.source, fix="give one JSON object, {query id: record, ...}; copy or generate it again"
        )

    def more(self) -> None:
        """Read on."""
        try:
            data = self.file.read(self.chunk or CHUNK)
        except UnicodeDecodeError as error:
            raise self.error(f"the file is not text in UTF-8 after query {self.last_key!r}: {error.reason}") from error
        self.text, self.at, self.ended = self.text[self.at :] + data, 0, not data

    def peek(self) -> str:
        """The next character that is not white space, or "" at the end."""
        while True:
            rest = len(self.text) - self.at
            while rest and self.text[self.at] in " \t\r\n":
                self.at, rest = self.at + 1, rest - 1
            if rest or self.ended:
                return self.text[self.at : self.at + 1]
            self.more()

    def expect(self, characters: str, consume: bool = True) -> str:
        """The next character, which must be one of `characters`."""
        character = self.peek()
        if not character:
            raise self.truncated()
        if character not in characters:
            wanted = " ".join(characters)
            raise self.error(f"expected one of {wanted} but found {character!r} after query {self.last_key!r}")
        self.at += consume
        return character

    def value(self) -> Any:
        """The next JSON value; reads on until it is whole."""
        self.peek()
        self.chunk = CHUNK
        while True:
            try:
                value, end = json.JSONDecoder().raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                if self.ended:
                    raise self.truncated() from error
                self.chunk *= 2
                self.more()
                continue
            except RecursionError as error:
                raise self.error(f"the JSON is nested too deep in or after query {self.last_key!r}") from error
            if end == len(self.text) and not self.ended:
                self.more()  # a number may go on in what has not been read yet
                continue
            self.at = end
            return value

    def truncated(self) -> RecipeError:
        place = f"in or after query {self.last_key!r}" if self.last_key is not None else "before its first query"
        return self.error(f"the JSON is cut off or malformed {place}")
