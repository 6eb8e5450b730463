"""Queries with their logged candidates in arrays, and padded batches of them.

Rewards are compared within a group: the candidates of one query that have the same number of picks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

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
        """What a pick is worth, [M]: vqa_correct, or beam_score within its group where no candidate has it."""
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
        """The same batch on a device."""
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
