"""Log-probabilities of tokens and entropies, a piece of the logits at a time, from logits or from the head's input.

`of_logits` takes logits in memory. `FusedHead` computes each piece from hidden states and the head's weight, and again
for the gradient, so the full logits are never stored. A piece of as many tokens as fit in `PIECE` logits bounds the
temporary memory, and takes far fewer operations than one token at a time.
"""

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
    return _InPieces.apply(flat, None, labels.reshape(-1), 1.0, False)[0].view(labels.shape)


@torch.compiler.disable  # verl compiles it where asked to, and this is made of few and large operations
def entropies(logits: torch.Tensor, **_: Any) -> torch.Tensor:
    """Entropies in nats, float32; takes the arguments of verl's `entropy_from_logits` and `..._with_chunking`."""
    flat = logits.reshape(-1, logits.shape[-1])
    return _InPieces.apply(flat, None, None, 1.0, True)[1].view(logits.shape[:-1])


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
            weight = vocab_weights.to(format_)
            found = _InPieces.apply(hidden, weight, input_ids.reshape(-1), float(temperature), True)
        return tuple(part.view(input_ids.shape) for part in found)


class _InPieces(torch.autograd.Function):
    """Logits, or the head's input with its weight, and labels -> log-probabilities and entropies; float32.

    Without labels there are no log-probabilities, and entropies only where they are asked for.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        weight: torch.Tensor | None,
        labels: torch.Tensor | None,
        temperature: float,
        with_entropies: bool,
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.temperature = temperature
        log_probs, entropies, log_sums = (torch.empty(len(rows), device=rows.device) for _ in range(3))
        for part in _pieces(rows, weight):
            logits = _logits(rows[part], weight, temperature)
            largest = logits.amax(-1, keepdim=True)
            below = logits - largest
            exponentials = below.exp()
            sums = exponentials.sum(-1)
            logs = sums.log()
            log_sums[part] = logs + largest[:, 0]
            if labels is not None:
                log_probs[part] = below.gather(-1, labels[part, None])[:, 0] - logs
            if with_entropies:
                entropies[part] = logs - exponentials.mul_(below).sum(-1) / sums
        ctx.save_for_backward(rows, weight, labels, log_sums, entropies)
        return log_probs, entropies

    @staticmethod
    def backward(ctx: Any, of_log_probs: torch.Tensor | None, of_entropies: torch.Tensor | None) -> Any:
        """The gradient for logits is onehot(label) - p for log p(label), and -p (log p + H) for the entropy H."""
        rows, weight, labels, log_sums, entropies = ctx.saved_tensors
        needs_rows, needs_weight = ctx.needs_input_grad[:2]
        of_rows = torch.empty_like(rows) if needs_rows else None
        of_weight = torch.zeros_like(weight, dtype=torch.float32) if needs_weight else None
        for part in _pieces(rows, weight):
            log_p = _logits(rows[part], weight, ctx.temperature) - log_sums[part, None]
            p = log_p.exp()
            if of_entropies is not None:
                found = log_p.add_(entropies[part, None]).mul_(p).mul_(-of_entropies[part, None])
                if of_log_probs is not None:
                    found.addcmul_(p, of_log_probs[part, None], value=-1)
            elif of_log_probs is not None:
                found = p.mul_(-of_log_probs[part, None])
            if of_log_probs is not None and labels is not None:
                chosen = labels[part, None]  # one label a row, so nothing has to be summed
                found.scatter_(-1, chosen, found.gather(-1, chosen) + of_log_probs[part, None])
            if weight is not None:
                found = found.div_(ctx.temperature).to(weight.dtype)
            if of_rows is not None:
                of_rows[part] = found if weight is None else found @ weight
            if of_weight is not None:
                of_weight += found.t() @ rows[part]
        return of_rows, None if of_weight is None else of_weight.to(weight.dtype), None, None, None


def _logits(rows: torch.Tensor, weight: torch.Tensor | None, temperature: float) -> torch.Tensor:
    return rows.float() if weight is None else (rows @ weight.t()).float().div_(temperature)


def _pieces(rows: torch.Tensor, weight: torch.Tensor | None) -> Iterator[slice]:
    """Slices of tokens, one for each piece of the logits."""
    vocabulary = rows.shape[-1] if weight is None else len(weight)
    size = max(1, PIECE.get(rows.device.type, PIECE["cuda"]) // vocabulary)
    return (slice(begin, begin + size) for begin in range(0, len(rows), size))
