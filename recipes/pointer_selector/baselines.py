"""What a selector has to beat: random examples, the nearest ones, and the nearest ones that are not alike."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from recipes.pointer_selector.batches import query_inputs
from recipes.pointer_selector.data import PointerData


def random_picks(data: PointerData, queries: np.ndarray, shots: int, draws: int, seed: int) -> Tensor:
    """Uniform sequences without replacement: [B, draws, S]."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.from_numpy(np.asarray(data.pool_size(queries)))
    noise = torch.rand(len(queries), draws, int(sizes.max()), generator=generator)
    inside = torch.arange(noise.shape[-1]) < sizes[:, None]
    return noise.masked_fill(~inside[:, None], -1.0).topk(shots, dim=-1).indices


def nearest_picks(data: PointerData, queries: np.ndarray, shots: int) -> Tensor:
    """The examples most similar to the query by cosine, the nearest first: [B, S]."""
    similarity, _ = _similarities(data, queries)
    return similarity.topk(shots, dim=-1).indices


def mmr_picks(data: PointerData, queries: np.ndarray, shots: int, balance: float = 0.7) -> Tensor:
    """Maximal marginal relevance: [B, S].

    Each step takes the example with the highest balance * similarity to the query - (1 - balance) * highest similarity
    to what was taken before. Source: Carbonell and Goldstein, SIGIR (1998).
    """
    similarity, pool = _similarities(data, queries)
    redundancy = torch.zeros_like(similarity)
    picks: list[Tensor] = []
    for _ in range(shots):
        score = balance * similarity - (1 - balance) * redundancy
        if picks:
            score = score.scatter(-1, torch.stack(picks, -1), float("-inf"))
        pick = score.argmax(-1)
        to_pick = (pool @ pool[torch.arange(len(pool)), pick][..., None]).squeeze(-1)
        redundancy = torch.maximum(redundancy, to_pick) if picks else to_pick
        picks.append(pick)
    return torch.stack(picks, -1)


def _similarities(data: PointerData, queries: np.ndarray) -> tuple[Tensor, Tensor]:
    """Cosines [B, K], -inf outside the pool, and the unit vectors of the pool [B, K, D].

    Where pool examples carry more features than queries do (their label, for instance), the common first ones count.
    """
    query, pool, mask = query_inputs(data, queries)
    width = min(query.shape[-1], pool.shape[-1])
    query, pool = functional.normalize(query[..., :width], dim=-1), functional.normalize(pool[..., :width], dim=-1)
    return (pool @ query[..., None]).squeeze(-1).masked_fill(~mask, float("-inf")), pool
