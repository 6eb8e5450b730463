"""Logged candidates: what a retriever by similarity would propose, by beam search, by sampling, and at random.

The retriever draws examples without replacement from softmax(cosine / temperature), so the log-probability of a
sequence is that of Plackett and Luce. It is the behaviour policy that the offline data comes from.
"""

from __future__ import annotations

import torch
from torch import Tensor


def log_prob(scores: Tensor, pointers: Tensor) -> Tensor:
    """Plackett-Luce log-probability: scores [B, K] (cosine / temperature), pointers [B, N, S] -> [B, N]."""
    free = torch.ones(*pointers.shape[:2], scores.shape[1], dtype=torch.bool)
    total = torch.zeros(pointers.shape[:2])
    for step in range(pointers.shape[2]):
        pick = pointers[:, :, step, None]
        log_probs = scores[:, None].expand_as(free).masked_fill(~free, float("-inf")).log_softmax(-1)
        total = total + log_probs.gather(-1, pick).squeeze(-1)
        free = free.scatter(-1, pick, False)
    return total


def beam(scores: Tensor, shots: int, width: int) -> Tensor:
    """The `width` most likely sequences that a beam finds, no two of them the same set: [B, width, S].

    The beam is wider than that, since its members are mostly orders of the same examples.
    """
    batch, slots = scores.shape
    wide = width * (6 if shots > 1 else 1)
    picks = torch.zeros(batch, 1, 0, dtype=torch.long)
    free = torch.ones(batch, 1, slots, dtype=torch.bool)
    total = torch.zeros(batch, 1)
    for _ in range(shots):
        step = scores[:, None].expand_as(free).masked_fill(~free, float("-inf")).log_softmax(-1)
        total, index = (total[..., None] + step).flatten(1).topk(min(wide, free.shape[1] * slots), dim=-1)
        parent, slot = index // slots, index % slots
        picks = torch.cat([picks.gather(1, parent[..., None].expand(-1, -1, picks.shape[-1])), slot[..., None]], -1)
        free = free.gather(1, parent[..., None].expand(-1, -1, slots)).scatter(-1, slot[..., None], False)
    return torch.stack(
        [_distinct_sets(row, total_of_row, width) for row, total_of_row in zip(picks, total, strict=True)]
    )


def _distinct_sets(sequences: Tensor, total: Tensor, width: int) -> Tensor:
    """The first `width` sequences that are different sets; repeats fill up where there are fewer."""
    seen: dict[tuple[int, ...], int] = {}
    for number, sequence in enumerate(sequences.sort(-1).values.tolist()):
        if torch.isfinite(total[number]):
            seen.setdefault(tuple(sequence), number)
    kept = list(seen.values())[:width]
    return sequences[kept + [kept[0]] * (width - len(kept))]


def draw(scores: Tensor, shots: int, count: int, generator: torch.Generator) -> Tensor:
    """`count` sequences sampled without replacement from softmax(scores), through Gumbel noise: [B, count, S]."""
    uniform = torch.rand(scores.shape[0], count, scores.shape[1], generator=generator).clamp(min=1e-20)
    return (scores[:, None] - (-uniform.log()).log()).topk(shots, dim=-1).indices
