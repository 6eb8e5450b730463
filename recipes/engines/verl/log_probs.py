"""Log-probabilities of tokens and entropies, a piece of the logits at a time, from logits or from the head's input.

`of_logits` takes logits in memory. `FusedHead` computes each piece from hidden states and the head's weight, and again
for the gradient, so the full logits are never stored. A piece of as many tokens as fit in `PIECE` logits bounds the
temporary memory, and takes far fewer operations than one token at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

PIECE = {"cpu": 1 << 22, "cuda": 1 << 26}
"""Logits of a piece: 16 MB in float32 on CPUs, which fits their caches, and 268 MB on GPUs."""


def of_logits(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of labels, float32; takes the arguments of verl's `logprobs_from_logits_v2`.

    Args:
        logits: (..., vocabulary), in any floating-point dtype; read again for the gradient, and not changed.
        labels: (...), whole numbers.
    """
    flat = logits.reshape(-1, logits.shape[-1])
    chosen: torch.Tensor = _OfLogits.apply(flat, labels.reshape(-1))[0]
    return chosen.view(labels.shape)


@torch.compiler.disable  # verl compiles it where asked to, and this is made of few and large operations
def entropies(logits: torch.Tensor, **_: Any) -> torch.Tensor:
    """Entropies in nats, float32; takes the arguments of verl's `entropy_from_logits` and `..._with_chunking`."""
    entropy: torch.Tensor = _OfLogits.apply(logits.reshape(-1, logits.shape[-1]), None)[1]
    return entropy.view(logits.shape[:-1])


class FusedHead(torch.nn.Module):
    """verl's `FusedLinearForPPO` (verl/utils/experimental/torch_functional.py:220 (`class FusedLinearForPPO`)).

    verl's rounds entropies, and after every 512 tokens the weight's gradient, to the weight's dtype; here both are in
    float32.
    """

    def forward(
        self, hidden_states: torch.Tensor, vocab_weights: torch.Tensor, input_ids: torch.Tensor, temperature: float = 1
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities and entropies, (...), float32.

        Args:
            hidden_states: (..., hidden), the head's input.
            vocab_weights: (vocabulary, hidden); the head computes in autocast's dtype if that is on, else in theirs.
            input_ids: (...), the labels.
            temperature: divides the logits.
        """
        kind = hidden_states.device.type
        format_ = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else vocab_weights.dtype
        hidden = hidden_states.reshape(-1, hidden_states.shape[-1]).to(format_)
        with torch.autocast(kind, enabled=False):
            found = _OfHidden.apply(hidden, vocab_weights.to(format_), input_ids.reshape(-1), float(temperature))
        return tuple(part.view(input_ids.shape) for part in found)


class _OfLogits(torch.autograd.Function):
    """(tokens, vocabulary) logits and labels -> log-probabilities, or without labels, entropies."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor | None) -> Any:
        ctx.set_materialize_grads(False)
        found = _Found(len(logits), logits.device)
        for part in _pieces(logits):
            found.fill(part, logits[part].float(), None if labels is None else labels[part], labels is None)
        ctx.save_for_backward(logits, labels, found.log_sums, found.entropies)
        return found.log_probs, found.entropies

    @staticmethod
    def backward(ctx: Any, of_log_probs: torch.Tensor | None, of_entropies: torch.Tensor | None) -> Any:
        logits, labels, log_sums, entropies = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        for part in _pieces(logits):
            gradient[part] = _gradient(
                logits[part].float(), part, labels, log_sums, entropies, of_log_probs, of_entropies
            )
        return gradient, None


class _OfHidden(torch.autograd.Function):
    """(tokens, hidden), (vocabulary, hidden), labels and temperature -> log-probabilities and entropies."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, temperature: float) -> Any:
        ctx.set_materialize_grads(False)
        ctx.temperature, found = temperature, _Found(len(hidden), hidden.device)
        for part in _pieces(hidden, len(weight)):
            found.fill(part, _logits(hidden[part], weight, temperature), labels[part])
        ctx.save_for_backward(hidden, weight, labels, found.log_sums, found.entropies)
        return found.log_probs, found.entropies

    @staticmethod
    def backward(ctx: Any, of_log_probs: torch.Tensor | None, of_entropies: torch.Tensor | None) -> Any:
        hidden, weight, labels, log_sums, entropies = ctx.saved_tensors
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        of_hidden = torch.empty_like(hidden) if needs_hidden else None
        of_weight = torch.zeros_like(weight, dtype=torch.float32) if needs_weight else None
        for part in _pieces(hidden, len(weight)):
            logits = _logits(hidden[part], weight, ctx.temperature)
            found = _gradient(logits, part, labels, log_sums, entropies, of_log_probs, of_entropies)
            found = found.div_(ctx.temperature).to(weight.dtype)
            if of_hidden is not None:
                of_hidden[part] = found @ weight
            if of_weight is not None:
                of_weight += found.t() @ hidden[part]
        return of_hidden, None if of_weight is None else of_weight.to(weight.dtype), None, None


class _Found:
    """Log-probabilities, entropies and logarithms of the sums of exponentials, filled piece by piece; float32."""

    def __init__(self, tokens: int, device: torch.device) -> None:
        self.log_probs, self.entropies, self.log_sums = (torch.empty(tokens, device=device) for _ in range(3))

    def fill(self, part: slice, logits: torch.Tensor, labels: torch.Tensor | None, entropies: bool = True) -> None:
        """Fill the tokens of a piece from its logits in float32, which are not changed."""
        largest = logits.amax(-1, keepdim=True)
        below = logits - largest
        exponentials = below.exp()
        sums = exponentials.sum(-1)
        logs = sums.log()
        self.log_sums[part] = logs + largest[:, 0]
        if labels is not None:
            self.log_probs[part] = below.gather(-1, labels[:, None])[:, 0] - logs
        if entropies:
            self.entropies[part] = logs - exponentials.mul_(below).sum(-1) / sums


def _gradient(
    logits: torch.Tensor,
    part: slice,
    labels: torch.Tensor | None,
    log_sums: torch.Tensor,
    entropies: torch.Tensor,
    of_log_probs: torch.Tensor | None,
    of_entropies: torch.Tensor | None,
) -> torch.Tensor:
    """Return the gradient for a piece's logits: onehot(label) - p for log p(label), -p (log p + H) for entropy H."""
    log_p = logits - log_sums[part, None]
    p = log_p.exp()
    if of_entropies is None:
        found = p if of_log_probs is None else p.mul_(-of_log_probs[part, None])
    else:
        found = log_p.add_(entropies[part, None]).mul_(p).mul_(-of_entropies[part, None])
        if of_log_probs is not None:
            found.addcmul_(p, of_log_probs[part, None], value=-1)
    if of_log_probs is not None and labels is not None:
        chosen = labels[part, None]  # one label a row, so nothing has to be summed
        found.scatter_(-1, chosen, found.gather(-1, chosen) + of_log_probs[part, None])
    return found


def _logits(hidden: torch.Tensor, weight: torch.Tensor, temperature: float) -> torch.Tensor:
    return (hidden @ weight.t()).float().div_(temperature)


def _pieces(rows: torch.Tensor, vocabulary: int | None = None) -> Iterator[slice]:
    """Slices of tokens, one for each piece of the logits."""
    size = max(1, PIECE.get(rows.device.type, PIECE["cuda"]) // (vocabulary or rows.shape[-1]))
    return (slice(begin, begin + size) for begin in range(0, len(rows), size))
