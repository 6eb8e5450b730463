"""Queries with their logged candidates: read, checked, counted, split and filtered; and padded batches of them.

Rewards are compared within a group: the candidates of one query that have the same number of picks. Logged candidates
are JSON lines, embeddings safetensors or npz; nothing pickled is executed. Errors name the query.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, BeforeValidator, Field, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from recipes.errors import RecipeError, first_line
from recipes.files import sha256
from recipes.paths import data_dir
from recipes.pointer_selector import workload
from recipes.pointer_selector.config import FilterConfig, PointerRecipe

SCORES = ("beam_score", "vqa_correct", "vqa_acc_score", "vqa_gt_prob")
"""The scores that a candidate may have. An absent one is NaN; only a reward or a validation that reads it raises."""
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class PointerData:
    """Q queries, their pools, and M candidates of at most S picks, sorted by query and then by number of picks."""

    queries: Tensor  # embeddings
    examples: Tensor
    query_ids: list[str]
    query_rows: np.ndarray  # [Q], rows of `queries`
    pools: list[np.ndarray]  # for each query, rows of `examples`
    split: np.ndarray  # [Q], index into `SPLITS`, or -1 where the file names no split
    candidate_query: np.ndarray  # [M], the query of each candidate
    pointers: np.ndarray  # [M, S], slots in the query's pool, -1 behind the last pick
    lengths: np.ndarray  # [M], number of picks
    scores: dict[str, np.ndarray]  # [M] for each name in `SCORES`; NaN where the file has none
    method: np.ndarray  # [M], gen_method
    skipped: dict[str, int] = field(default_factory=dict)  # left out while reading, by reason

    def __len__(self) -> int:
        return len(self.query_ids)

    @property
    def widths(self) -> tuple[int, int]:
        """The numbers of features of a query and of an example."""
        return self.queries.shape[1], self.examples.shape[1]

    @cached_property
    def group_starts(self) -> np.ndarray:
        """[G + 1], where each group's candidates begin."""
        key = self.candidate_query.astype(np.int64) * (int(self.lengths.max(initial=0)) + 1) + self.lengths
        return np.flatnonzero(np.diff(key, prepend=-1, append=-1))

    @cached_property
    def group_query(self) -> np.ndarray:
        """The query of each group, [G]."""
        return self.candidate_query[self.group_starts[:-1]]

    @cached_property
    def query_groups(self) -> np.ndarray:
        """[Q + 1], where each query's groups begin."""
        return np.searchsorted(self.group_query, np.arange(len(self) + 1))

    def within_groups(self, values: np.ndarray) -> np.ndarray:
        """Stretch each group to 0 to 1, equal values becoming 0.5: values [M] -> [M]."""
        starts = self.group_starts
        sizes = np.diff(starts)
        low = np.repeat(np.minimum.reduceat(values, starts[:-1]), sizes)
        span = np.repeat(np.maximum.reduceat(values, starts[:-1]), sizes) - low
        return np.where(span > 0, (values - low) / np.where(span > 0, span, 1), 0.5)

    @property
    def has_truth(self) -> bool:
        """Return whether a candidate was judged right or wrong."""
        return not np.isnan(self.scores["vqa_correct"]).all()

    @property
    def outcomes(self) -> np.ndarray:
        """The worth of a candidate, [M]: vqa_correct, or beam_score within its group where no candidate has it."""
        if self.has_truth:
            return self.scores["vqa_correct"].astype(float)
        return self.within_groups(self.scores["beam_score"].astype(float))

    def pool_rows(self, queries: np.ndarray) -> Tensor:
        """Rows of the example table, [B, K], 0 behind the end of a pool."""
        return pad_sequence([torch.from_numpy(self.pools[query]) for query in queries], batch_first=True)

    def inputs(self, queries: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """Query [B, Dq], padded pool [B, K, Dp] and its mask [B, K] of some queries."""
        rows, sizes = self.pool_rows(queries), torch.tensor([len(self.pools[query]) for query in queries])
        mask = torch.arange(rows.shape[1]) < sizes[:, None]
        return self.queries[torch.from_numpy(self.query_rows[queries])], self.examples[rows] * mask[..., None], mask

    def keep_candidates(self, mask: np.ndarray) -> PointerData:
        """The same queries with some of their candidates."""
        return replace(
            self,
            candidate_query=self.candidate_query[mask],
            pointers=self.pointers[mask],
            lengths=self.lengths[mask],
            scores={name: values[mask] for name, values in self.scores.items()},
            method=self.method[mask],
        )

    def keep_queries(self, mask: np.ndarray) -> PointerData:
        """Some of the queries with all their candidates; the tables are shared."""
        kept = np.flatnonzero(mask)
        data = self.keep_candidates(mask[self.candidate_query])
        return replace(
            data,
            query_ids=[self.query_ids[q] for q in kept],
            query_rows=self.query_rows[kept],
            pools=[self.pools[q] for q in kept],
            split=self.split[kept],
            candidate_query=np.searchsorted(kept, data.candidate_query),
        )

    def with_candidates(self) -> PointerData:
        """The queries that have a candidate."""
        return self.keep_queries(np.isin(np.arange(len(self)), self.candidate_query))


class Batch(NamedTuple):
    """B queries with L groups each, of N candidates each, K pool slots and S picks, all after padding.

    A query's groups are in one batch, in order of their number of picks, so that its pool is encoded once.
    """

    query: Tensor  # [B, Dq]
    pool: Tensor  # [B, K, Dp]
    pool_mask: Tensor  # [B, K]
    pointers: Tensor  # [B, L * N, S], slots, 0 at padding
    steps: Tensor  # [B, L * N, S], true where there is a pick
    candidates: Tensor  # [B, L, N], true where there is a candidate
    rows: Tensor  # [B, L, N], the candidate's number in the data, 0 at padding

    def to(self, device: torch.device) -> Batch:
        return Batch(*(tensor.to(device) for tensor in self))

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """The arguments of `PointerPolicy.encode`."""
        return self.query, self.pool, self.pool_mask

    def by_group(self, values: Tensor) -> Tensor:
        """Stack the groups of all queries, without the padded ones: [B, L, N, ...] -> [G, N, ...]."""
        return values[self.candidates.any(-1)]

    def picks_by_group(self, values: Tensor) -> Tensor:
        """Do the same for tensors in the layout of `pointers` and `steps`: [B, L * N, S] -> [G, N, S]."""
        return self.by_group(values.unflatten(1, self.candidates.shape[1:]))


def collate(data: PointerData, queries: np.ndarray) -> Batch:
    """The batch of some queries, in the order given."""
    group_starts, group_ends = data.query_groups[queries], data.query_groups[queries + 1]
    groups, is_group = _ranges(group_starts, group_ends)
    starts = data.group_starts[groups]
    ends = np.where(is_group, data.group_starts[groups + 1], starts)
    rows, candidates = _ranges(starts, ends)
    picks = int(data.lengths[rows[candidates]].max())
    pointers = data.pointers[rows][..., :picks]
    steps = (pointers >= 0) & candidates[..., None]
    query, pool, pool_mask = data.inputs(queries)
    return Batch(
        query=query,
        pool=pool,
        pool_mask=pool_mask,
        pointers=torch.from_numpy(np.where(steps, pointers, 0).astype(np.int64)).flatten(1, 2),
        steps=torch.from_numpy(steps).flatten(1, 2),
        candidates=torch.from_numpy(candidates),
        rows=torch.from_numpy(rows),
    )


def _ranges(starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Start .. end - 1 in a new last axis, padded with 0, and a mask that is false at the padding."""
    number = np.arange((ends - starts).max())
    mask = number < (ends - starts)[..., None]
    return np.where(mask, starts[..., None] + number, 0), mask


Id = Annotated[str, BeforeValidator(lambda item: str(item) if isinstance(item, int) else item)]
"""An id is text; 5 and "5" are the same id."""
Share = Annotated[float, Field(ge=0, le=1)]
Truth = Annotated[
    float, Field(ge=0, le=1, multiple_of=1), BeforeValidator(lambda v: int(v) if isinstance(v, bool) else v)
]
UNUSABLE = ("error", "fallback")
"""Values of `vqa_eval_mode` that mark a failed evaluation; such candidates are left out."""
HELD_OUT_SHARE = 0.15
"""Share of the queries in validation, and in test, where the file names no split."""
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


class Candidate(BaseModel, strict=True, allow_inf_nan=False):
    """A sequence of examples that was tried: ids in order, how it was made, its numbers; other keys are ignored."""

    pointer: Annotated[list[Id], Field(min_length=1)]
    gen_method: str = "other"
    beam_score: float | None = None
    vqa_correct: Truth | None = None
    vqa_acc_score: Share | None = None
    vqa_gt_prob: Share | None = None
    vqa_eval_mode: Any = None
    eval_failed: Any = False


class Record(BaseModel, strict=True, allow_inf_nan=False):
    """A query with its candidates."""

    query_id: Id
    pointer_candidates: Annotated[list[Candidate], Field(min_length=1)]
    pool: list[Id] | None = None  # None: it chooses from all examples
    embedding_id: Id | None = None  # None: the query_id
    split: Literal["train", "validation", "test"] | None = None


@dataclass(frozen=True)
class Prepared:
    """Inputs of training and evaluation."""

    parts: dict[str, PointerData]  # train (filtered), validation and test
    model: workload.FrozenModel | None
    counts: dict[str, Any]  # counts of all data that were read
    dropped: dict[str, int]  # what the filters took out of the training part, by reason
    digest: str  # hash of the files


def prepare(recipe: PointerRecipe) -> Prepared:
    """Read, check, split and filter. Makes the embedded workload first if it is not there.

    Raises RecipeError where the recipe names only one of candidates and embeddings, or the data cannot be trained on.
    """
    config, model = recipe.data, None
    if config.candidates is None and config.query_embeddings is None:
        candidates, queries, model = workload.prepare(data_dir("pointer_selector"))
        examples = queries
    elif config.candidates is None or config.query_embeddings is None:
        missing = "data.candidates" if config.candidates is None else "data.query_embeddings"
        raise RecipeError(f"{missing} is not set, but the other one is", where=missing, fix="give both, or neither")
    else:
        candidates, queries = Path(config.candidates), Path(config.query_embeddings)
        examples = Path(config.candidate_embeddings or config.query_embeddings)
    data = read_data(candidates, queries, examples)
    parts = by_split(data)
    train = parts["train"]
    most, longest = shot_num(recipe, train), int(train.lengths.max())
    if longest < most or train.lengths.min() > most:
        what, fix = f"no logged sequence has {most} picks; the longest has {longest}", f"set SHOT_NUM={longest}"
        raise RecipeError(what, where="data.shot_num", fix=f"{fix}, or log longer sequences")
    train, dropped = filtered(train.keep_candidates(train.lengths <= most).with_candidates(), config.filters)
    if (number := config.train_queries) > len(train):
        what = f"{number} training queries were asked for, and there are {len(train)}"
        raise RecipeError(what, where="data.train_queries", fix=f"ask for at most {len(train)}; 0 takes all")
    if number:  # by a hash of their ids, so that a smaller choice is part of a larger one
        order = sorted(range(len(train)), key=lambda n: hashlib.sha256(train.query_ids[n].encode()).digest())
        train = train.keep_queries(np.isin(np.arange(len(train)), order[:number]))
    parts["train"] = train
    digest = hashlib.sha256("".join(map(sha256, (candidates, queries, examples))).encode()).hexdigest()
    return Prepared(parts, model, count(data), dropped, digest)


def read_data(candidates: Path, query_embeddings: Path, candidate_embeddings: Path) -> PointerData:
    """Read the candidates and both tables of embeddings, resolving every id.

    Raises RecipeError, which names the query or the file: a file is missing or broken, a query or an example in a pool
    or pointer is repeated or unknown, or no query can be used.
    """
    queries, query_rows = load_table(query_embeddings, "query")
    examples, example_rows = load_table(candidate_embeddings, "candidate")
    everything, skipped = np.arange(len(examples)), Counter[str]()
    query_ids: list[str] = []
    rows, pools, split = [], [], []
    picks: list[tuple[int, Candidate, list[int]]] = []  # query, candidate, and slots in its pool
    for record in _records(candidates):
        query, pool = record.query_id, record.pool
        usable = [c for c in record.pointer_candidates if not c.eval_failed and c.vqa_eval_mode not in UNUSABLE]
        skipped["candidates whose evaluation failed or fell back"] += len(record.pointer_candidates) - len(usable)
        if not usable:
            skipped["queries whose evaluations all failed"] += 1
            continue
        slots = example_rows if pool is None else {item: slot for slot, item in enumerate(pool)}
        row = query if record.embedding_id is None else record.embedding_id
        for items, known, of_what in (
            *((candidate.pointer, slots, "examples of its pool") for candidate in usable),
            (pool or [], example_rows, f"embeddings of {candidate_embeddings}"),
            ([row], query_rows, f"embeddings of {query_embeddings}"),
        ):
            what, fix = f"query {query!r} names ", "mend the id, or leave the query out"
            if len(set(items)) != len(items):
                raise RecipeError(f"{what}an example twice: {str(items)[:80]}", where=str(candidates), fix=fix)
            if missing := [item for item in items if item not in known]:
                what += f"{missing[0]!r}, which is not among the {len(known)} {of_what}"
                raise RecipeError(what, where=str(candidates), fix=fix)
        pools.append(everything if pool is None else np.array([example_rows[item] for item in pool]))
        for candidate in sorted(usable, key=lambda candidate: len(candidate.pointer)):
            picks.append((len(query_ids), candidate, [slots[item] for item in candidate.pointer]))
        query_ids.append(query)
        rows.append(query_rows[row])
        split.append(-1 if record.split is None else SPLITS.index(record.split))
    if not query_ids:
        reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.items()) or "it is empty"
        fix = "log at least one usable candidate for each query"
        raise RecipeError(f"the file holds no query that can be used: {reasons}", where=str(candidates), fix=fix)
    padded = np.full((len(picks), max(len(pointer) for *_, pointer in picks)), -1, np.int32)
    for number, (*_, pointer) in enumerate(picks):
        padded[number, : len(pointer)] = pointer
    return PointerData(
        queries=queries,
        examples=examples,
        query_ids=query_ids,
        query_rows=np.array(rows),
        pools=pools,
        split=np.array(split),
        candidate_query=np.array([query for query, *_ in picks]),
        pointers=padded,
        lengths=(padded >= 0).sum(1),
        scores={name: np.array([getattr(each, name) for _, each, _ in picks], np.float32) for name in SCORES},
        method=np.array([each.gen_method for _, each, _ in picks]),
        skipped={reason: number for reason, number in skipped.items() if number},
    )


def _records(path: Path) -> Iterator[Record]:
    """Yield the records of a file in its order. Raises RecipeError, with the line, for one that cannot be used."""
    if not path.is_file():
        raise RecipeError(f"there is no file {path}", where="data.candidates", fix="prepare the data, or mend the path")
    seen: set[str] = set()
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            where, value = f"{path}, line {number}", None
            try:
                value = json.loads(line)
                record = Record.model_validate(value)
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
            if record.query_id in seen:
                what = f"query {record.query_id!r} stands in the file twice"
                raise RecipeError(what, where=where, fix="keep one of the two")
            seen.add(record.query_id)
            yield record


def load_table(path: Path, role: str) -> tuple[torch.Tensor, dict[str, int]]:
    """Read the table of one role ("query" or "candidate").

    The file holds `query_embeddings` or `candidate_embeddings` [n, width] and, where rows are not numbered, `query_ids`
    or `candidate_ids` [n]. In safetensors, ids that are text stand in the metadata as a JSON list.

    Returns the embeddings [n, width] and the row of each id. Raises RecipeError where the file is missing, has another
    format or a wrong shape, or holds values that are not finite.
    """
    name = f"{role}_embeddings"
    if not path.is_file():
        raise RecipeError(f"there is no file {path}", where=f"data.{name}", fix="mend the path, or embed first")
    try:
        content = _content(path)
        if name not in content:
            raise ValueError(f"it has no {name}, but {', '.join(sorted(content)) or 'nothing'}")
        rows = torch.as_tensor(content[name])
        if rows.ndim != 2 or not rows.is_floating_point() or 0 in rows.shape:
            raise ValueError(f"{name} is {rows.dtype} of shape {tuple(rows.shape)}, not [rows, features]")
        ids = content.get(f"{role}_ids", range(len(rows)))
        ids = [str(item) for item in (ids.tolist() if hasattr(ids, "tolist") else ids)]
        if len(ids) != len(rows) or len(set(ids)) != len(rows):
            raise ValueError(f"{role}_ids has {len(ids)} entries ({len(set(ids))} distinct) for {len(rows)} rows")
        if not (finite := torch.isfinite(rows).all(dim=1)).all():
            raise ValueError(f"the embedding of {ids[int(finite.int().argmin())]!r} holds values that are not finite")
    except (SafetensorError, zipfile.BadZipFile, ValueError, TypeError, EOFError, OSError) as error:
        what = f"the file cannot be used: {first_line(error)}"
        fix = f"save {name} [rows, features] and {role}_ids as safetensors or npz"
        raise RecipeError(what, where=str(path), fix=fix) from error
    return rows.float(), {item: number for number, item in enumerate(ids)}


def _content(path: Path) -> dict[str, Any]:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    with safe_open(path, framework="pt") as file:
        content = {name: json.loads(ids) for name, ids in (file.metadata() or {}).items() if name.endswith("_ids")}
        return content | {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping


def by_split(data: PointerData) -> dict[str, PointerData]:
    """The three parts; a query's part does not depend on other queries, so that it stays when data is added.

    Raises RecipeError where some queries name their split and others do not, or a part is empty.
    """
    named = data.split >= 0
    if named.any() and not named.all():
        query = data.query_ids[int(named.argmin())]
        what = f"query {query!r} names no split, unlike others"
        raise RecipeError(what, where="data.candidates", fix="name all or none")
    labels = data.split
    if not named.all():
        digests = [hashlib.sha256(f"0:{query}".encode()).digest() for query in data.query_ids]
        places = [int.from_bytes(digest[:8], "big") / 2**64 for digest in digests]  # in [0, 1): test, validation, train
        labels = 2 - np.searchsorted((HELD_OUT_SHARE, 2 * HELD_OUT_SHARE), places, side="right")
    parts = {name: data.keep_queries(labels == number) for number, name in enumerate(SPLITS)}
    for name, part in parts.items():
        if not len(part):
            what = f"no query is left for {name} among {len(data)}"
            raise RecipeError(what, where="data.candidates", fix="give more queries, or name their split")
    return parts


def shot_num(recipe: PointerRecipe, train: PointerData) -> int:
    """The most picks that are trained on: the user's number, or the recipe's and no more than are logged."""
    given = recipe.data.shot_num
    return given if recipe.source_of("data.shot_num").by_user else min(given, int(train.lengths.max()))


def filtered(data: PointerData, config: FilterConfig) -> tuple[PointerData, dict[str, int]]:
    """The data without repeated and filtered-out candidates, and how many were dropped, by reason.

    Raises RecipeError where nothing is left.
    """
    dropped: dict[str, int] = {}
    if config.drop_incorrect_below is not None:
        low = (data.scores["vqa_correct"] == 0) & (data.scores[config.score] < config.drop_incorrect_below)
        dropped[f"incorrect candidates with {config.score} < {config.drop_incorrect_below:g}"] = int(low.sum())
        data = data.keep_candidates(~low)
    repeated = _repeats(data)
    dropped["repeated sequences"] = int(repeated.sum())
    data = data.keep_candidates(~repeated)
    result = data.with_candidates()
    if lost := len(data) - len(result):
        dropped["queries left without candidates"] = lost
    if not len(result):
        what = "the filters leave no query"
        raise RecipeError(what, where="data.filters", fix=f"loosen them; they dropped {dropped}")
    return result, dropped


def _repeats(data: PointerData) -> np.ndarray:
    """Return [M], true where an earlier candidate of the query has the same sequence."""
    repeats = np.ones(len(data.lengths), bool)
    sequences = np.column_stack([data.candidate_query, data.pointers])
    repeats[np.unique(sequences, axis=0, return_index=True)[1]] = False
    return repeats


def count(data: PointerData) -> dict[str, Any]:
    """Return the counts of a data set by the label that is printed.

    Groups that are all right or all wrong teach nothing about correctness, groups of one candidate nothing at all.
    """
    correct = data.scores["vqa_correct"]
    starts = data.group_starts[:-1]
    sizes = list(map(len, data.pools))
    shots, methods = (np.unique(values, return_counts=True) for values in (data.lengths[starts], data.method))
    counts = {
        "queries": len(data),
        "groups by shots": dict(zip(map(str, shots[0]), shots[1].tolist(), strict=True)),
        "candidates by method": dict(zip(map(str, methods[0]), methods[1].tolist(), strict=True)),
        "candidates": len(correct),
        "correct candidates, share": "unknown" if np.isnan(correct).all() else round(float(np.nanmean(correct)), 4),
        "queries without a correct candidate": len(data) - len(np.unique(data.candidate_query[~(correct == 0)])),
        "groups all right or all wrong": int(
            (np.minimum.reduceat(correct, starts) == np.maximum.reduceat(correct, starts)).sum()
        ),
        "groups of one candidate": int((np.diff(data.group_starts) == 1).sum()),
        "repeated sequences": int(_repeats(data).sum()),
        "pool sizes": f"{min(sizes)} to {max(sizes)}",
        **{f"skipped: {reason}": number for reason, number in data.skipped.items()},
    }
    for name, values in data.scores.items():
        if not np.isnan(values).all():
            counts[f"{name}, 0/5/25/50/75/95/100%"] = np.nanquantile(values, QUANTILES).round(6).tolist()
    return counts
