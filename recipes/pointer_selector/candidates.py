"""The file of logged candidates, one JSON object a line: read one by one and checked field by field.

Every error names the query.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import ijson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from recipes.errors import RecipeError

METHODS = ("beam", "sample", "random", "other")
SCORES = ("beam_score", "logprob_score", "vqa_correct", "vqa_acc_score", "vqa_gt_prob")
"""The numbers that a candidate may carry; an absent one is kept as NaN, and only a reward that reads it asks for it."""
SPLITS = ("train", "validation", "test")

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
        """Return the index into `METHODS`."""
        return METHODS.index(self.gen_method if self.gen_method in METHODS else "other")

    @property
    def scores(self) -> list[float]:
        """Return the numbers in the order of `SCORES`; NaN where there is none."""
        values = (getattr(self, name) for name in SCORES)
        return [math.nan if value is None else float(value) for value in values]

    @property
    def fallback(self) -> bool:
        return bool(self.vqa_eval_mode == "fallback")

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
    """Return the record in either layout: `pointer_candidates`, or the older `id_list` with `score_list`.

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


def read_entries(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (query id, record) in the order of the file; two queries of one id are an error.

    A `.jsonl` file has one object a line, with the id as `query_id`. Any other file is one object {id: record, ...},
    the form of earlier versions; keys that begin with an underscore are no queries there.

    Raises:
        RecipeError: no such file, text that is no JSON, or an id that is missing or repeated; names line or query.
    """
    if not path.is_file():
        raise RecipeError(f"there is no file {path}", where="data.candidates", fix="prepare the data, or mend the path")
    seen: set[str] = set()
    for query_id, record in _lines(path) if path.suffix == ".jsonl" else _members(path):
        if query_id in seen:
            raise RecipeError(
                f"query {query_id!r} stands in the file twice", where=str(path), fix="keep one of the two"
            )
        seen.add(query_id)
        yield query_id, record
    if not seen:
        raise RecipeError(
            "the file holds no query", where=str(path), fix="give one JSON object a line, in a .jsonl file"
        )


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            where, fix = f"{path}, line {number}", "give one JSON object a line; copy or generate the file again"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise RecipeError(f"the line is no JSON: {error}", where=where, fix=fix) from error
            query_id = record.pop("query_id", None) if isinstance(record, dict) else None
            if not isinstance(query_id, int | str):
                raise RecipeError("the line has no query_id that is a number or text", where=where, fix=fix)
            yield str(query_id), record


def _members(path: Path) -> Iterator[tuple[str, Any]]:
    key = None
    with path.open("rb") as file:
        try:
            for key, record in ijson.kvitems(file, "", use_float=True):
                if not key.startswith("_"):
                    yield key, record
        except ijson.JSONError as error:
            place = f"after query {key!r}" if key else "before its first query"
            fix = "copy or generate it again, without NaN; a .jsonl file with one object a line is read too"
            raise RecipeError(f"the JSON is cut off or malformed {place}: {error}", where=str(path), fix=fix) from error
