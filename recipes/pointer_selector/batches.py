"""Padded batches of queries, made without a Python loop over queries or candidates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from recipes.pointer_selector.data import PointerData


@dataclass(frozen=True)
class Batch:
    """B queries with L groups each, of N candidates each, K pool slots and S picks, all after padding.

    All groups of a query are in one batch, so that its pool is encoded once. Groups stand in order of their number of
    picks, which is what `first` rests on.

    Attributes:
        query: [B, Dq].
        pool: [B, K, Dp].
        pool_mask: [B, K].
        pointers: [B, L * N, S], slots, 0 at padding.
        steps: [B, L * N, S], true where there is a pick.
        candidates: [B, L, N], true where there is a candidate.
        rows: [B, L, N], the candidate's number in the data, 0 at padding.
        first: for each of the S picks, the first of the L * N columns in which any query has such a pick.
    """

    query: Tensor
    pool: Tensor
    pool_mask: Tensor
    pointers: Tensor
    steps: Tensor
    candidates: Tensor
    rows: Tensor
    first: tuple[int, ...]

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        if device.type == "cpu":
            return self
        moved = {f.name: getattr(self, f.name) for f in fields(self)}
        return Batch(**{k: v.to(device, non_blocking=True) if isinstance(v, Tensor) else v for k, v in moved.items()})

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """What `PointerPolicy.encode` takes."""
        return self.query, self.pool, self.pool_mask

    def by_group(self, values: Tensor) -> Tensor:
        """Groups one under the other, without the padded ones: [B, L, N, ...] -> [G, N, ...]."""
        return values[self.candidates.any(-1)]

    def picks_by_group(self, values: Tensor) -> Tensor:
        """The same for what `pointers` and `steps` are like: [B, L * N, S] -> [G, N, S]."""
        return self.by_group(values.unflatten(1, self.candidates.shape[1:]))


def pools(data: PointerData, queries: np.ndarray) -> tuple[Tensor, Tensor]:
    """The padded pools of some queries: [B, K, Dp] and their mask [B, K]."""
    table = data.examples.rows
    if data.pool_offsets is None:
        pool = table.float().expand(len(queries), -1, -1)
        return pool, torch.ones(pool.shape[:2], dtype=torch.bool)
    starts, sizes = data.pool_offsets[queries], data.pool_size(queries)
    slot = np.arange(sizes.max())
    mask = slot < sizes[:, None]
    rows = data.pool_rows[np.where(mask, starts[:, None] + slot, starts[:, None])]
    pool = table[torch.from_numpy(rows)].float()
    return pool * torch.from_numpy(mask)[..., None], torch.from_numpy(mask)


def query_inputs(data: PointerData, queries: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    """query [B, Dq], pool [B, K, Dp], mask [B, K] of some queries, without candidates."""
    return (data.queries.rows[torch.from_numpy(data.query_rows[queries])].float(), *pools(data, queries))


def collate(data: PointerData, queries: np.ndarray) -> Batch:
    """The batch of some queries, in the order given."""
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
    """start .. end - 1 in a new last axis, padded with 0, and where that is not padding."""
    number = np.arange((ends - starts).max())
    mask = number < (ends - starts)[..., None]
    return np.where(mask, starts[..., None] + number, 0), mask


def shuffled(count: int, size: int, seed: int, phase: str, epoch: int) -> list[np.ndarray]:
    """The batches of one epoch, as indices; a function of the arguments alone, so that a run can resume inside it."""
    order = np.random.default_rng([seed, epoch, *phase.encode()]).permutation(count)
    return [order[start : start + size] for start in range(0, count, size)]


def in_order(data: PointerData, size: int) -> Iterator[Batch]:
    """All queries once, in order."""
    for start in range(0, len(data), size):
        yield collate(data, np.arange(start, min(len(data), start + size)))
