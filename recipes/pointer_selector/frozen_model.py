"""The frozen in-context classifier of the embedded workload, and the question it answers in validation.

It stands where a vision-language model stands in real use: it has a weak opinion of its own about a query, it is shown
S examples with their (possibly wrong) labels, and nothing about it is ever trained. Its answer is a kernel average:

    p(label | query, examples)  proportional to  w * prior(label | query) + sum_i k(query, example_i) [label_i = label]

with k = exp((cos(f(query), f(example)) - 1) / bandwidth) in a feature space f of its own, which the policy never sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recipes.errors import RecipeError
from recipes.pointer_selector.data import PointerData

ARRAYS = ("prior", "query_features", "truth", "example_features", "example_labels", "constants")


@dataclass(frozen=True)
class Verdict:
    """What the frozen model made of some sequences; all of shape [...] as the picks' leading dimensions.

    Attributes:
        correct: true where its answer is the right one.
        probability: what it gave to the right answer.
        accuracy: 1 / rank of the right answer, a soft accuracy score between 0 and 1.
        answer: the label that it answered.
    """

    correct: Tensor
    probability: Tensor
    accuracy: Tensor
    answer: Tensor


@dataclass(frozen=True)
class FrozenModel:
    """Rows of `prior`, `query_features` and `truth` are those of the query table, the others' of the example table."""

    prior: Tensor
    query_features: Tensor
    truth: Tensor
    example_features: Tensor
    example_labels: Tensor
    prior_weight: float
    bandwidth: float

    def votes(self, queries: Tensor, examples: Tensor) -> Tensor:
        """What each example adds to each label: query rows [B], example rows [B, K] -> [B, K, labels]."""
        cosine = (self.example_features[examples] * self.query_features[queries][:, None]).sum(-1)
        kernel = ((cosine - 1) / self.bandwidth).exp()
        return kernel[..., None] * torch.nn.functional.one_hot(self.example_labels[examples], self.prior.shape[1])

    def judge(self, queries: Tensor, total: Tensor) -> Verdict:
        """Verdicts from summed votes: query rows [B], total [B, ..., labels] -> [B, ...]."""
        between = [1] * (total.ndim - 2)
        mass = total + self.prior_weight * self.prior[queries].view(len(queries), *between, -1)
        probability = mass / mass.sum(-1, keepdim=True)
        truth = self.truth[queries].view(len(queries), *between, 1).expand(*total.shape[:-1], 1)
        of_truth = probability.gather(-1, truth)
        rank = 1 + (probability > of_truth).sum(-1)
        answer = probability.argmax(-1)
        return Verdict(answer == truth.squeeze(-1), of_truth.squeeze(-1), 1 / rank, answer)

    def verdict(self, data: PointerData, queries: np.ndarray, picks: Tensor) -> Verdict:
        """Verdicts on sequences of slots: queries [B] of `data`, picks [B, ..., S] -> [B, ...]; S may be 0."""
        rows, examples = torch.from_numpy(data.query_rows[queries]), torch.from_numpy(pool_rows(data, queries))
        votes = self.votes(rows, examples)
        flat = picks.reshape(len(queries), -1)
        total = votes.gather(1, flat[..., None].expand(-1, -1, votes.shape[-1]))
        return self.judge(rows, total.view(*picks.shape, votes.shape[-1]).sum(-2))

    def oracle(self, data: PointerData, queries: np.ndarray, shots: int, limit: int) -> Verdict | None:
        """The best of all sets of `shots` examples, by probability; None where a pool has more than `limit` such sets.

        The order of examples does not matter to this model, so sets are enough.
        """
        sizes = data.pool_size(queries)
        slots = int(sizes.max())
        if sizes.min() != slots:
            return None
        sets = _sets(slots, shots, limit)
        if sets is None:
            return None
        rows, examples = torch.from_numpy(data.query_rows[queries]), torch.from_numpy(pool_rows(data, queries))
        best = []
        for row, votes in zip(rows, self.votes(rows, examples), strict=True):
            verdict = self.judge(row[None], votes[sets].sum(1)[None])
            # Numbers, since tensors this small keep the large blocks beside them from being given back.
            found = (verdict.correct.any(), verdict.probability.max(), verdict.accuracy.max())
            best.append([value.item() for value in found])
        correct, probability, accuracy = torch.tensor(best).unbind(-1)
        return Verdict(correct.bool(), probability, accuracy, torch.full_like(rows, -1))

    def save(self, path: str | Path) -> None:
        """Write the arrays as npz, without pickles."""
        arrays = {name: getattr(self, name).numpy() for name in ARRAYS[:-1]}
        np.savez_compressed(path, **arrays, constants=np.array([self.prior_weight, self.bandwidth]))

    @classmethod
    def load(cls, path: str | Path) -> FrozenModel:
        """Read what `save` wrote. Raises RecipeError if the file is something else."""
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: torch.from_numpy(file[name]) for name in ARRAYS}
        except (OSError, ValueError, KeyError) as error:
            raise RecipeError(
                f"this is no frozen classifier: {error}",
                where=str(path),
                fix="make it with the data preparation script",
            ) from error
        prior_weight, bandwidth = arrays.pop("constants").tolist()
        return cls(**arrays, prior_weight=prior_weight, bandwidth=bandwidth)


def pool_rows(data: PointerData, queries: np.ndarray) -> np.ndarray:
    """Rows of the example table, [B, K]; slots behind the end of a pool repeat its first example."""
    if data.pool_offsets is None:
        return np.broadcast_to(np.arange(len(data.examples.rows)), (len(queries), len(data.examples.rows))).copy()
    starts, sizes = data.pool_offsets[queries], data.pool_size(queries)
    slot = np.arange(sizes.max())
    return data.pool_rows[np.where(slot < sizes[:, None], starts[:, None] + slot, starts[:, None])]


def _sets(slots: int, shots: int, limit: int) -> Tensor | None:
    from math import comb

    if comb(slots, shots) > limit:
        return None
    return torch.tensor(list(combinations(range(slots), shots)), dtype=torch.long).view(-1, shots)
