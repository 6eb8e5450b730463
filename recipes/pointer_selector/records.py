"""One query's record in the candidate file, checked field by field; every error names the query."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from recipes.errors import RecipeError

METHODS = ("beam", "sample", "random", "other")
SCORES = ("beam_score", "logprob_score", "vqa_correct", "vqa_acc_score", "vqa_gt_prob")
"""The numbers that a candidate may carry; one that is absent is kept as NaN and asked for only by a reward."""
SPLITS = ("train", "validation", "test")
LARGEST = 1e30
"""Numbers beyond this are no scores, and float32 would make them infinite."""
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
    """A query: its own pool (None where all queries share one), its candidates, and its split where the file says so.

    `embedding` is the id of its embedding: the query's own id, unless several queries share one.
    """

    query_id: str
    embedding: Item
    candidates: list[Candidate]
    pool: list[Item] | None
    split: str | None


def parse_record(query_id: str, value: Any, *, source: str) -> Record:
    """A record of either layout.

    Args:
        query_id: the key under which the record stands.
        value: `{"pointer_candidates": [...]}`, or the older `{"id_list": [[..., query id]], "score_list": [...]}`;
            `pool` (ids of the examples that this query may be given), `split` and
            `embedding_id` (where it is not the query's id) are optional in both.
        source: the file, for messages.

    Raises:
        RecipeError: the record is not of either layout, a pick is repeated, or a number is not finite.
    """
    where = f"{source}, query {query_id!r}"
    if not isinstance(value, dict):
        raise RecipeError(f"query {query_id!r} holds {type(value).__name__}, not an object", where=where)
    if "pointer_candidates" in value:
        candidates = [
            _candidate(entry, f"{where}, candidate {number}", query_id)
            for number, entry in enumerate(_list(value["pointer_candidates"], "pointer_candidates", where, query_id))
        ]
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
