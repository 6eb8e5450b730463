"""Greedy, sampled and beam decoding, batched over queries; padding of the pool never changes a result."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from recipes.pointer_selector.policy import Encoded, PointerPolicy


def greedy(policy: PointerPolicy, encoded: Encoded, shots: int) -> tuple[Tensor, Tensor]:
    """The most likely slot at each step: picks [B, S] and their log-probabilities [B, S]."""
    picks, log_probs = _walk(policy, encoded, shots, 1, lambda scores, _: scores.argmax(-1))
    return picks[:, 0], log_probs[:, 0]


def sample(
    policy: PointerPolicy,
    encoded: Encoded,
    shots: int,
    draws: int,
    generator: torch.Generator,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """`draws` sequences a query: picks [B, N, S] and log-probabilities under the policy itself [B, N, S].

    One uniform number a pick is turned into a slot through the cumulative distribution, so that neither the padding of
    a pool nor the other queries of a batch change what is drawn from the same stream of numbers.
    """
    batch = encoded.state.shape[0]
    device = generator.device
    uniform = torch.rand(batch, draws, shots, generator=generator, device=device).to(encoded.state.device)

    def draw(scores: Tensor, step: int) -> Tensor:
        return pick_by_uniform((scores / temperature).softmax(-1), uniform[:, :, step])

    return _walk(policy, encoded, shots, draws, draw)


def pick_by_uniform(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """The slot whose share of the cumulative distribution holds `uniform`: [..., K], [...] in [0, 1) -> [...]."""
    cumulative = probabilities.double().cumsum(-1)
    slot = torch.searchsorted(cumulative, (uniform.double() * cumulative[..., -1])[..., None], right=True).squeeze(-1)
    last = probabilities.shape[-1] - 1 - (probabilities > 0).flip(-1).to(torch.uint8).argmax(-1)
    return torch.minimum(slot, last)


def beam(policy: PointerPolicy, encoded: Encoded, shots: int, width: int) -> tuple[Tensor, Tensor]:
    """The `width` most likely sequences that a beam of that width finds: picks [B, W, S], log-probabilities [B, W].

    W is `width`, or the number of slots where that is smaller. Sequences that do not exist (a pool with fewer
    sequences than W) have a log-probability below -1e8.
    """
    batch, slots = encoded.mask.shape
    state, free = encoded.state[:, None], encoded.mask[:, None]
    total = encoded.state.new_zeros(batch, 1)
    picks = torch.zeros(batch, 1, 0, dtype=torch.long, device=state.device)
    for step in range(shots):
        scores = (total[..., None] + policy.log_probs(encoded, state, free)).flatten(1)
        total, index = scores.topk(min(width, scores.shape[1]), dim=-1)
        parent, slot = index // slots, index % slots
        picks = torch.cat([_rows(picks, parent), slot[..., None]], dim=-1)
        free = _rows(free, parent).scatter(-1, slot[..., None], False)
        if step + 1 < shots:
            state = policy.update(encoded, _rows(state, parent), slot)
    return picks, total


def exact_kl(
    policy: PointerPolicy, reference: PointerPolicy, inputs: tuple[Tensor, Tensor, Tensor], picks: Tensor
) -> Tensor:
    """KL(policy || reference) of the next pick, summed over all slots and over the steps along `picks`: [B, N].

    With `picks` [B, N, S] drawn from the policy, the mean over draws estimates the KL of whole sequences without bias,
    whereas k3 over logged candidates does not.
    """
    ours, theirs = policy.encode(*inputs), reference.encode(*inputs)
    draws = picks.shape[1]
    free = inputs[2][:, None].expand(-1, draws, -1)
    states = [e.state[:, None].expand(-1, draws, -1) for e in (ours, theirs)]
    total = torch.zeros(picks.shape[:2], device=picks.device, dtype=ours.state.dtype)
    for step in range(picks.shape[2]):
        here, there = policy.log_probs(ours, states[0], free), reference.log_probs(theirs, states[1], free)
        total = total + (here.exp() * (here - there)).masked_fill(~free, 0.0).sum(-1)
        free = free.scatter(-1, picks[:, :, step, None], False)
        states = [
            policy.update(ours, states[0], picks[..., step]),
            reference.update(theirs, states[1], picks[..., step]),
        ]
    return total


def _walk(
    policy: PointerPolicy, encoded: Encoded, shots: int, rows: int, choose: Callable[[Tensor, int], Tensor]
) -> tuple[Tensor, Tensor]:
    state = encoded.state[:, None].expand(-1, rows, -1)
    free = encoded.mask[:, None].expand(-1, rows, -1)
    picks, chosen = [], []
    for step in range(shots):
        log_probs = policy.log_probs(encoded, state, free)
        pick = choose(log_probs, step)
        picks.append(pick)
        chosen.append(log_probs.gather(-1, pick[..., None]).squeeze(-1))
        free = free.scatter(-1, pick[..., None], False)
        if step + 1 < shots:
            state = policy.update(encoded, state, pick)
    return torch.stack(picks, -1), torch.stack(chosen, -1)


def _rows(values: Tensor, parent: Tensor) -> Tensor:
    return values.gather(1, parent[..., None].expand(-1, -1, values.shape[-1]))
