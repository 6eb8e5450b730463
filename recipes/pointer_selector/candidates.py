"""Logged candidates (JSON lines) and embeddings (safetensors, npz, pt): read, checked, and put into arrays.

Every error names the query. Nothing pickled is executed.
"""

from __future__ import annotations

import json
import math
import pickle
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open

from recipes.errors import RecipeError
from recipes.pointer_selector.dataset import SCORES, SPLITS, PointerData

Id = Annotated[str, BeforeValidator(lambda item: str(item) if isinstance(item, int) else item)]
"""An id is text; 5 and "5" are one."""
Score = Annotated[float, Field(ge=-1e30, le=1e30)]  # float32 makes larger numbers infinite
Share = Annotated[float, Field(ge=0, le=1)]
Truth = Annotated[
    float, Field(ge=0, le=1, multiple_of=1), BeforeValidator(lambda v: int(v) if isinstance(v, bool) else v)
]
UNUSABLE = ("error", "fallback")
"""Values of `vqa_eval_mode` whose reward says nothing about the model's answer."""


class _Logged(BaseModel):
    """Strict types; keys that nothing here reads are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class Candidate(_Logged):
    """A sequence of examples that was tried: their ids in order, how it was made, and its numbers."""

    pointer: Annotated[list[Id], Field(min_length=1)]
    gen_method: str = "other"
    beam_score: Score | None = None
    vqa_correct: Truth | None = None
    vqa_acc_score: Share | None = None
    vqa_gt_prob: Share | None = None
    vqa_eval_mode: Any = None
    eval_failed: Any = False


class Record(_Logged):
    """A query with its candidates.

    `pool` is None where the query chooses from all examples; `embedding_id` where its embedding has its own id.
    """

    query_id: Id
    pointer_candidates: Annotated[list[Candidate], Field(min_length=1)]
    pool: list[Id] | None = None
    embedding_id: Id | None = None
    split: Literal["train", "validation", "test"] | None = None


def read_records(path: Path) -> Iterator[Record]:
    """Yield the records of a file in its order.

    Raises:
        RecipeError: no such file, a line that is no JSON or no record, or a repeated query; names line or query.
    """
    if not path.is_file():
        raise RecipeError(f"there is no file {path}", where="data.candidates", fix="prepare the data, or mend the path")
    seen: set[str] = set()
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            record = _record(line, f"{path}, line {number}")
            if record.query_id in seen:
                what = f"query {record.query_id!r} stands in the file twice"
                raise RecipeError(what, where=f"{path}, line {number}", fix="keep one of the two")
            seen.add(record.query_id)
            yield record


def _record(line: bytes, where: str) -> Record:
    value = None
    try:
        value = json.loads(line)
        return Record.model_validate(value)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        query = value.get("query_id") if isinstance(value, dict) else None
        place = ".".join(map(str, detail["loc"])) or "the line"
        what = f"{place} of query {query!r} is {str(detail['input'])[:80]!r}: {detail['msg']}"
        fix = "mend it, or leave the candidate out; mark failed evaluations with eval_failed"
        raise RecipeError(what, where=where, fix=fix) from error
    except (ValueError, RecursionError) as error:
        fix = "give one JSON object a line; copy or generate the file again"
        raise RecipeError(f"the line is no JSON: {error}", where=where, fix=fix) from error


@dataclass(frozen=True)
class Table:
    """Embeddings [n, width] and the row of each id (the row's number where the file has no ids)."""

    rows: torch.Tensor
    index: dict[str, int]
    source: str

    def row(self, item: str, query_id: str) -> int:
        """Return the row of an id. Raises RecipeError that names the query where there is none."""
        if item not in self.index:
            raise RecipeError(
                f"query {query_id!r} needs the embedding of {item!r}; the table of {len(self.rows)} rows has none",
                where=self.source,
                fix="embed the missing item, or leave the query out",
            )
        return self.index[item]


def load_table(path: Path, role: str) -> Table:
    """Read the table of one role ("query" or "candidate").

    The file holds `query_embeddings` or `candidate_embeddings` [n, width] and, where rows are not numbered, `query_ids`
    or `candidate_ids` [n]. In safetensors, ids that are text stand in the metadata as a JSON list.

    Raises:
        RecipeError: no such file, another format, pickled objects, a wrong shape, or values that are not finite.
    """
    name, where = f"{role}_embeddings", str(path)
    if not path.is_file():
        raise RecipeError(f"there is no file {path}", where=f"data.{name}", fix="mend the path, or embed first")
    try:
        content = _content(path)
        if name not in content:
            raise ValueError(f"it has no {name}, but {', '.join(sorted(content)) or 'nothing'}")
        values = content[name]
        rows = torch.stack([torch.as_tensor(row) for row in values]) if isinstance(values, list) else values
        rows = torch.as_tensor(rows)
        if rows.ndim != 2 or not rows.is_floating_point() or 0 in rows.shape:
            raise ValueError(f"{name} is {rows.dtype} of shape {tuple(rows.shape)}, not [rows, features]")
        ids = content.get(f"{role}_ids", range(len(rows)))
        ids = [str(item) for item in (ids.tolist() if hasattr(ids, "tolist") else ids)]
        if len(ids) != len(rows) or len(set(ids)) != len(rows):
            raise ValueError(f"{role}_ids has {len(ids)} entries ({len(set(ids))} distinct) for {len(rows)} rows")
        if not (finite := torch.isfinite(rows).all(dim=1)).all():
            raise ValueError(f"the embedding of {ids[int(finite.int().argmin())]!r} holds values that are not finite")
    except pickle.UnpicklingError as error:  # torch's own message says how to execute what the file holds
        fix = "save a tensor, or a dict of tensors and lists"
        raise RecipeError("the file holds pickled objects other than tensors", where=where, fix=fix) from error
    except (SafetensorError, zipfile.BadZipFile, ValueError, TypeError, RuntimeError, EOFError, OSError) as error:
        what = f"the file cannot be used: {next(iter(str(error).splitlines()), type(error).__name__)}"
        fix = f"save {name} [rows, features] and {role}_ids as safetensors, npz or pt"
        raise RecipeError(what, where=where, fix=fix) from error
    return Table(rows.float(), {item: number for number, item in enumerate(ids)}, where)


def _content(path: Path) -> dict[str, Any]:
    if path.suffix == ".safetensors":
        with safe_open(path, framework="pt") as file:
            content = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            metadata = file.metadata() or {}
        return {
            name: json.loads(metadata[name]) for name in ("query_ids", "candidate_ids") if name in metadata
        } | content
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    if path.suffix in (".pt", ".pth"):
        loaded = torch.load(path, map_location="cpu", weights_only=True)
        return loaded if isinstance(loaded, dict) else {}
    raise ValueError(f"its suffix is {path.suffix or 'missing'}")


def read_data(candidates: Path, query_embeddings: Path, candidate_embeddings: Path) -> PointerData:
    """Read the candidates and both tables, resolving every id.

    Raises:
        RecipeError: what `read_records` and `load_table` raise; an id outside the pool or the table, or one that stands
            in a pool or pointer twice; names the query.
    """
    queries, examples = load_table(query_embeddings, "query"), load_table(candidate_embeddings, "candidate")
    everything = np.arange(len(examples.rows))
    skipped: Counter[str] = Counter()
    ids: list[str] = []
    rows, splits, pools = [], [], []
    owner, pointers, scores, methods = [], [], [], []
    for record in read_records(candidates):
        query = record.query_id
        usable = [c for c in record.pointer_candidates if not c.eval_failed and c.vqa_eval_mode not in UNUSABLE]
        skipped["candidates whose evaluation failed or fell back"] += len(record.pointer_candidates) - len(usable)
        if not usable:
            skipped["queries whose evaluations all failed"] += 1
            continue
        pool = record.pool
        slots = examples.index if pool is None else {item: slot for slot, item in enumerate(pool)}
        for items in (pool or [], *(candidate.pointer for candidate in usable)):
            if len(set(items)) != len(items):
                what = f"query {query!r} holds an example twice: {str(items)[:80]}"
                raise RecipeError(what, where=str(candidates), fix="a pool and a pointer hold an example once")
        pools.append(everything if pool is None else np.array([examples.row(item, query) for item in pool]))
        for candidate in sorted(usable, key=lambda candidate: len(candidate.pointer)):
            if outside := [item for item in candidate.pointer if item not in slots]:
                what = f"query {query!r} picks {outside[0]!r}, which is not among the {len(slots)} examples of its pool"
                raise RecipeError(what, where=str(candidates), fix="pointers hold ids of the query's pool")
            owner.append(len(ids))
            pointers.append([slots[item] for item in candidate.pointer])
            scores.append([math.nan if (v := getattr(candidate, name)) is None else float(v) for name in SCORES])
            methods.append(candidate.gen_method)
        rows.append(queries.row(query if record.embedding_id is None else record.embedding_id, query))
        splits.append(-1 if record.split is None else SPLITS.index(record.split))
        ids.append(query)
    if not ids:
        raise RecipeError("the file holds no query that can be used", where=str(candidates), fix=f"{dict(skipped)}")
    padded = np.full((len(pointers), max(map(len, pointers))), -1, np.int32)
    for number, picks in enumerate(pointers):
        padded[number, : len(picks)] = picks
    return PointerData(
        queries=queries.rows,
        examples=examples.rows,
        query_ids=ids,
        query_rows=np.array(rows),
        pools=pools,
        split=np.array(splits),
        candidate_query=np.array(owner),
        pointers=padded,
        lengths=(padded >= 0).sum(1),
        scores=dict(zip(SCORES, np.array(scores, np.float32).T.copy(), strict=True)),
        method=np.array(methods),
        skipped={reason: number for reason, number in skipped.items() if number},
    )
