"""All queries and candidates in flat arrays, and padded batches of them, without a Python loop over candidates.

About 60 bytes a candidate, so that 100,000 queries fit in 100 MB. A group is what rewards are compared within: the
candidates of one query that have the same number of picks.
"""

from __future__ import annotations

import dataclasses
import hashlib
from array import array
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recipes.errors import RecipeError
from recipes.pointer_selector.candidates import SCORES, SPLITS, Item, Record, parse_record, read_entries
from recipes.pointer_selector.embeddings import Table, load_table, other_spelling


@dataclass(frozen=True)
class PointerData:
    """Q queries, their pools, and M candidates of at most S picks, sorted by query and then by number of picks."""

    queries: Table
    examples: Table
    query_ids: list[str]
    query_rows: np.ndarray  # [Q], rows of `queries`
    split: np.ndarray  # [Q], index into `SPLITS`, or -1 where the file says nothing
    pool_offsets: np.ndarray | None  # [Q + 1], where each pool begins in `pool_rows`; None: all share the whole table
    pool_rows: np.ndarray  # rows of `examples`, pool after pool
    candidate_query: np.ndarray  # [M], the query of each candidate
    pointers: np.ndarray  # [M, S], slots in the query's pool, -1 behind the last pick
    lengths: np.ndarray  # [M], number of picks
    scores: dict[str, np.ndarray]  # [M] for each name in `SCORES`; NaN where the file has none
    method: np.ndarray  # [M], index into `METHODS`
    fallback: np.ndarray  # [M], true where the reward comes from a fallback evaluation
    skipped: dict[str, int] = field(default_factory=dict)  # what was left out while reading, by reason

    def __len__(self) -> int:
        return len(self.query_ids)

    @cached_property
    def group_starts(self) -> np.ndarray:
        """Return [G + 1], where each group's candidates begin."""
        key = self.candidate_query.astype(np.int64) * (int(self.lengths.max(initial=0)) + 1) + self.lengths
        return np.flatnonzero(np.diff(key, prepend=-1, append=-1))

    @cached_property
    def group_query(self) -> np.ndarray:
        """Return [G], the query of each group."""
        queries: np.ndarray = self.candidate_query[self.group_starts[:-1]]
        return queries

    @cached_property
    def group_shots(self) -> np.ndarray:
        """Return [G], the number of picks of each group's candidates."""
        shots: np.ndarray = self.lengths[self.group_starts[:-1]]
        return shots

    @cached_property
    def query_groups(self) -> np.ndarray:
        """Return [Q + 1], where each query's groups begin."""
        return np.searchsorted(self.group_query, np.arange(len(self) + 1))

    def pool_sizes(self, queries: np.ndarray) -> np.ndarray:
        """Return the number of examples that each of these queries chooses from."""
        if self.pool_offsets is None:
            return np.full(len(queries), len(self.examples.rows))
        sizes: np.ndarray = self.pool_offsets[queries + 1] - self.pool_offsets[queries]
        return sizes

    def keep_candidates(self, mask: np.ndarray) -> PointerData:
        """Return the same queries with some of their candidates."""
        return dataclasses.replace(
            self,
            candidate_query=self.candidate_query[mask],
            pointers=self.pointers[mask],
            lengths=self.lengths[mask],
            scores={name: values[mask] for name, values in self.scores.items()},
            method=self.method[mask],
            fallback=self.fallback[mask],
        )

    def keep_queries(self, mask: np.ndarray) -> PointerData:
        """Return some of the queries with all their candidates; pools are copied, tables are shared."""
        kept = np.flatnonzero(mask)
        offsets, rows = self.pool_offsets, self.pool_rows
        if offsets is not None:
            sizes = (offsets[1:] - offsets[:-1])[kept]
            rows = rows[np.repeat(mask, offsets[1:] - offsets[:-1])]
            offsets = np.concatenate([[0], np.cumsum(sizes)])
        number = np.full(len(mask), -1, np.int64)
        number[kept] = np.arange(len(kept))
        data = self.keep_candidates(mask[self.candidate_query])
        return dataclasses.replace(
            data,
            query_ids=[self.query_ids[q] for q in kept],
            query_rows=self.query_rows[kept],
            split=self.split[kept],
            pool_offsets=offsets,
            pool_rows=rows,
            candidate_query=number[data.candidate_query],
        )

    def digest(self) -> str:
        """Return a fingerprint of everything that training reads, so that a run is not resumed on other data."""
        sha = hashlib.sha256("\n".join(self.query_ids).encode())
        for values in (self.query_rows, self.pool_rows, self.candidate_query, self.pointers, *self.scores.values()):
            sha.update(np.ascontiguousarray(values).tobytes())
        for table in (self.queries, self.examples):
            sha.update(np.ascontiguousarray(table.rows.float().numpy()).tobytes())
        return sha.hexdigest()


def read_data(candidates: str | Path, query_embeddings: str | Path, candidate_embeddings: str | Path) -> PointerData:
    """Read the candidate file and both tables, resolving every id.

    Pointers are ids of the candidate table; where a query names its own `pool` they must be in it.

    Raises:
        RecipeError: with the query's id, for an id outside the pool or the table, a repeated pick, a number that is not
            finite, truncated JSON, or a pool smaller than a sequence.
    """
    tables = load_table(query_embeddings, "query"), load_table(candidate_embeddings, "candidate")
    packer = _Packer(*tables, str(candidates))
    for query_id, value in read_entries(Path(candidates)):
        packer.add(query_id, parse_record(query_id, value, source=str(candidates)))
    return packer.finish()


@dataclass
class _Packer:
    """Numbers of the records read so far, in arrays that grow."""

    queries: Table
    examples: Table
    source: str
    skipped: Counter[str] = field(default_factory=Counter)
    query_ids: list[str] = field(default_factory=list)
    own_pools: bool | None = None

    def __post_init__(self) -> None:
        self.query_rows, self.split, self.pool_rows, self.pool_sizes = array("q"), array("b"), array("q"), array("q")
        self.owner, self.length, self.picks = array("q"), array("h"), array("i")
        self.scores, self.method, self.fallback = array("f"), array("b"), array("b")

    def add(self, query_id: str, record: Record) -> None:
        usable = [candidate for candidate in record.pointer_candidates if not candidate.failed]
        if failed := len(record.pointer_candidates) - len(usable):
            self.skipped["candidates whose evaluation failed"] += failed
        if not usable:
            self.skipped["queries whose evaluations all failed"] += 1
            return
        slots = self._pool(query_id, record.pool)
        embedding = query_id if record.embedding_id is None else record.embedding_id
        self.query_rows.append(self.queries.row(embedding, query_id))
        self.split.append(-1 if record.split is None else SPLITS.index(record.split))
        for candidate in sorted(usable, key=lambda candidate: len(candidate.pointer)):
            self.picks.extend(self._slot(item, slots, query_id) for item in candidate.pointer)
            self.owner.append(len(self.query_ids))
            self.length.append(len(candidate.pointer))
            self.scores.extend(candidate.scores)
            self.method.append(candidate.method)
            self.fallback.append(candidate.fallback)
        self.query_ids.append(query_id)

    def _pool(self, query_id: str, pool: list[Item] | None) -> dict[Item, int] | None:
        """Return the slot of each of the pool's examples; None where all queries share the whole table."""
        if self.own_pools is None:
            self.own_pools = pool is not None
        if self.own_pools != (pool is not None):
            raise RecipeError(
                f"query {query_id!r} has {'no' if self.own_pools else 'a'} pool, unlike the ones before it",
                where=self.source,
                fix="give every query a pool, or none",
            )
        if pool is None:
            return None
        self.pool_rows.extend(self.examples.row(item, query_id) for item in pool)
        self.pool_sizes.append(len(pool))
        return {item: slot for slot, item in enumerate(pool)}

    def _slot(self, item: Item, slots: dict[Item, int] | None, query_id: str) -> int:
        if slots is None:
            return self.examples.row(item, query_id)
        slot = slots.get(item, slots.get(other_spelling(item), -1))
        if slot < 0:
            raise RecipeError(
                f"query {query_id!r} picks {item!r}, which is not among the {len(slots)} examples of its pool",
                where=self.source,
                fix="pointers hold ids of the query's pool",
            )
        return slot

    def finish(self) -> PointerData:
        if not self.query_ids:
            fix = f"skipped: {dict(self.skipped)}"
            raise RecipeError("no query is left after reading", where=self.source, fix=fix)
        lengths = np.array(self.length, np.int16)
        pointers = np.full((len(lengths), int(lengths.max())), -1, np.int32)
        pointers[np.arange(pointers.shape[1]) < lengths[:, None]] = self.picks
        scores = np.array(self.scores, np.float32).reshape(-1, len(SCORES))
        return PointerData(
            queries=self.queries,
            examples=self.examples,
            query_ids=self.query_ids,
            query_rows=np.array(self.query_rows),
            split=np.array(self.split, np.int8),
            pool_offsets=np.concatenate([[0], np.cumsum(self.pool_sizes)]) if self.own_pools else None,
            pool_rows=np.array(self.pool_rows, np.int64),
            candidate_query=np.array(self.owner),
            pointers=pointers,
            lengths=lengths,
            scores={name: scores[:, column].copy() for column, name in enumerate(SCORES)},
            method=np.array(self.method, np.int8),
            fallback=np.array(self.fallback, bool),
            skipped=dict(self.skipped),
        )


@dataclass(frozen=True)
class Batch:
    """B queries with L groups each, of N candidates each, K pool slots and S picks, all after padding.

    All groups of a query are in one batch, so that its pool is encoded once. Groups stand in order of their number of
    picks, which is what `first` rests on.
    """

    query: Tensor  # [B, Dq]
    pool: Tensor  # [B, K, Dp]
    pool_mask: Tensor  # [B, K]
    pointers: Tensor  # [B, L * N, S], slots, 0 at padding
    steps: Tensor  # [B, L * N, S], true where there is a pick
    candidates: Tensor  # [B, L, N], true where there is a candidate
    rows: Tensor  # [B, L, N], the candidate's number in the data, 0 at padding
    first: tuple[int, ...]  # for each of the S picks, the first of the L * N columns in which any query has such a pick

    def to(self, device: torch.device) -> Batch:
        """Return the same batch on a device."""
        if device.type == "cpu":
            return self
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        tensors: dict[str, Any] = {name: x.to(device) for name, x in values.items() if isinstance(x, Tensor)}
        return dataclasses.replace(self, **tensors)

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the arguments of `PointerPolicy.encode`."""
        return self.query, self.pool, self.pool_mask

    def by_group(self, values: Tensor) -> Tensor:
        """Put groups one under the other, without the padded ones: [B, L, N, ...] -> [G, N, ...]."""
        return values[self.candidates.any(-1)]

    def picks_by_group(self, values: Tensor) -> Tensor:
        """Do the same for what `pointers` and `steps` are like: [B, L * N, S] -> [G, N, S]."""
        return self.by_group(values.reshape(len(values), *self.candidates.shape[1:], *values.shape[2:]))


def pool_rows(data: PointerData, queries: np.ndarray) -> np.ndarray:
    """Return rows of the example table, [B, K]; slots behind the end of a pool repeat its first example."""
    if data.pool_offsets is None:
        return np.broadcast_to(np.arange(len(data.examples.rows)), (len(queries), len(data.examples.rows)))
    starts, sizes = data.pool_offsets[queries], data.pool_sizes(queries)
    slot = np.arange(sizes.max())
    rows: np.ndarray = data.pool_rows[np.where(slot < sizes[:, None], starts[:, None] + slot, starts[:, None])]
    return rows


def query_inputs(data: PointerData, queries: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    """Return query [B, Dq], padded pool [B, K, Dp] and its mask [B, K] of some queries, without candidates."""
    query = data.queries.rows[torch.from_numpy(data.query_rows[queries])].float()
    if data.pool_offsets is None:
        pool = data.examples.rows.float().expand(len(queries), -1, -1)
        return query, pool, torch.ones(pool.shape[:2], dtype=torch.bool)
    rows = torch.from_numpy(pool_rows(data, queries))
    mask = torch.arange(rows.shape[1]) < torch.from_numpy(data.pool_sizes(queries))[:, None]
    return query, data.examples.rows[rows].float() * mask[..., None], mask


def collate(data: PointerData, queries: np.ndarray) -> Batch:
    """Return the batch of some queries, in the order given."""
    group_starts, group_ends = data.query_groups[queries], data.query_groups[queries + 1]
    groups, is_group = _ranges(group_starts, group_ends)
    starts = data.group_starts[groups]
    ends = np.where(is_group, data.group_starts[groups + 1], starts)
    rows, candidates = _ranges(starts, ends)
    picks = int(data.group_shots[groups[is_group]].max())
    pointers = data.pointers[rows][..., :picks]
    steps = (pointers >= 0) & candidates[..., None]
    flat = steps.reshape(len(queries), -1, picks)
    query, pool, pool_mask = query_inputs(data, queries)
    return Batch(
        query=query,
        pool=pool,
        pool_mask=pool_mask,
        pointers=torch.from_numpy(np.where(steps, pointers, 0).astype(np.int64)).flatten(1, 2),
        steps=torch.from_numpy(flat),
        candidates=torch.from_numpy(candidates),
        rows=torch.from_numpy(rows),
        first=tuple(int(column) for column in flat.any(0).argmax(0)),
    )


def _ranges(starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return start .. end - 1 in a new last axis, padded with 0, and a mask that is false at the padding."""
    number = np.arange((ends - starts).max())
    mask = number < (ends - starts)[..., None]
    return np.where(mask, starts[..., None] + number, 0), mask


def shuffled(count: int, size: int, seed: int, phase: str, epoch: int) -> list[np.ndarray]:
    """Return an epoch's batches, as indices; a function of the arguments alone, so that a run resumes inside it."""
    order = np.random.default_rng([seed, epoch, *phase.encode()]).permutation(count)
    return [order[start : start + size] for start in range(0, count, size)]
