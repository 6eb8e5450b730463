"""How good a policy is on some queries, at each number of shots."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from recipes.errors import RecipeError
from recipes.pointer_selector.batches import collate, in_order, query_inputs
from recipes.pointer_selector.config import PointerRecipe
from recipes.pointer_selector.data import PointerData
from recipes.pointer_selector.decoding import exact_kl, greedy, sample
from recipes.pointer_selector.frozen_model import FrozenModel
from recipes.pointer_selector.policy import PointerPolicy


@dataclass(frozen=True)
class Measure:
    """One number of shots: right answers [Q] (0 or 1) and the probability of the right answer [Q] (NaN if unknown).

    `queries` are the numbers of the queries measured, in the data they were measured on.
    """

    shots: int
    queries: np.ndarray
    correct: np.ndarray
    probability: np.ndarray

    def mean(self, what: str) -> float:
        """Mean of "accuracy" or "probability"."""
        return float((self.correct if what == "accuracy" else self.probability).mean())


def measure(
    policy: PointerPolicy,
    data: PointerData,
    judge: FrozenModel | None,
    shots: list[int],
    *,
    queries: np.ndarray | None = None,
    batch_size: int = 256,
) -> list[Measure]:
    """Measures at each number of shots.

    With a frozen model to ask, the policy picks greedily out of the whole pool and the model answers. Without one, only
    logged candidates have a known outcome: the policy ranks those of each group, and the first one counts; numbers of
    shots that nothing was logged for are left out.
    """
    queries = np.arange(len(data)) if queries is None else queries
    was_training = policy.training
    policy.eval()
    with torch.inference_mode():
        if judge is None:
            found = [_by_logged(policy, data, s, queries, batch_size) for s in shots]
        else:
            picks = decode(policy, data, queries, max(shots), batch_size)
            found = [_by_judge(judge, data, queries, picks[:, :s]) for s in shots]
    policy.train(was_training)
    return [m for m in found if m is not None]


class Validator:
    """Measures the validation queries, and as many training queries in the same way, so that over-fitting shows.

    `reference` is the warm-up policy, once there is one; the KL to it is then estimated from samples.
    """

    def __init__(
        self, recipe: PointerRecipe, train: PointerData, validation: PointerData, judge: FrozenModel | None
    ) -> None:
        self.config, self.shot_num, self.judge = recipe.validation, recipe.data.shot_num, judge
        self.train, self.validation = train, validation
        self.sample = np.sort(np.random.default_rng(0).permutation(len(train))[: self.config.train_queries])
        self.reference: PointerPolicy | None = None

    def __call__(self, policy: PointerPolicy) -> tuple[dict[str, float], float, float]:
        """Metrics, and the value that checkpoints are compared by on validation and on training queries (NaN: none).

        Raises:
            RecipeError: the data gives no number for the metric.
        """
        metrics, value = self._part("val", policy, self.validation, np.arange(len(self.validation)))
        train_metrics, train_value = self._part("train", policy, self.train, self.sample)
        if np.isnan(value):
            raise RecipeError(
                f"validation by {self.config.metric} gives no number",
                where="validation.metric",
                fix="log candidates at the shots of validation.shots, with the numbers that the metric needs",
            )
        if self.reference is not None:
            some = np.arange(min(64, len(self.validation)))
            kl = sampled_kl(policy, self.reference, self.validation, some, self.shot_num)
            metrics["val-aux/pointer_selector/kl_on_policy"] = kl
        return metrics | train_metrics, value, train_value

    def _part(
        self, name: str, policy: PointerPolicy, data: PointerData, queries: np.ndarray
    ) -> tuple[dict[str, float], float]:
        metrics: dict[str, float] = {}
        if not len(queries):
            return metrics, float("nan")
        found = measure(policy, data, self.judge, self.config.shots, queries=queries, batch_size=self.config.batch_size)
        for m in found:
            self._require_known(m, data)
            metrics[f"{name}-core/pointer_selector/acc/shots@{m.shots}"] = m.mean("accuracy")
            metrics[f"{name}-aux/pointer_selector/probability/shots@{m.shots}"] = m.mean("probability")
        value = float(np.mean([m.mean(self.config.metric) for m in found])) if found else float("nan")
        metrics[f"{name}-core/pointer_selector/{self.config.metric}/mean"] = value
        return metrics, value

    def _require_known(self, measure: Measure, data: PointerData) -> None:
        unknown = np.isnan(measure.correct if self.config.metric == "accuracy" else measure.probability)
        if unknown.any():
            query = data.query_ids[measure.queries[int(unknown.argmax())]]
            number = "vqa_correct" if self.config.metric == "accuracy" else "vqa_gt_prob"
            raise RecipeError(
                f"query {query!r} has a candidate without {number}, which validation counts",
                where=f"validation.metric={self.config.metric}",
                fix="log that number, or set validation.metric to the other one",
            )


def decode(policy: PointerPolicy, data: PointerData, queries: np.ndarray, shots: int, batch_size: int = 256) -> Tensor:
    """Greedy picks [Q, S]; the first s of them are the greedy picks at s shots.

    Raises:
        RecipeError: a pool is smaller than the number of picks; names the query.
    """
    require_pools(data, queries, shots)
    device = next(policy.parameters()).device
    found = []
    for start in range(0, len(queries), batch_size):
        inputs = [x.to(device) for x in query_inputs(data, queries[start : start + batch_size])]
        found.append(greedy(policy, policy.encode(*inputs), shots)[0].cpu())
    return torch.cat(found)


def require_pools(data: PointerData, queries: np.ndarray, shots: int) -> None:
    """Refuse to take more examples than a pool has."""
    sizes = np.asarray(data.pool_size(queries))
    if len(sizes) and sizes.min() < shots:
        query = data.query_ids[queries[int(sizes.argmin())]]
        raise RecipeError(
            f"the pool of query {query!r} has {sizes.min()} examples, fewer than {shots} shots",
            where="validation.shots",
            fix="ask for fewer shots, or give larger pools",
        )


def _by_judge(judge: FrozenModel, data: PointerData, queries: np.ndarray, picks: Tensor) -> Measure:
    verdict = judge.verdict(data, queries, picks)
    return Measure(picks.shape[1], queries, verdict.correct.numpy().astype(float), verdict.probability.numpy())


def _by_logged(
    policy: PointerPolicy, data: PointerData, shots: int, queries: np.ndarray, batch_size: int
) -> Measure | None:
    data = data.keep_queries(np.isin(np.arange(len(data)), queries))
    data = data.keep_candidates(data.lengths == shots)
    logged = np.unique(data.candidate_query)
    if not len(logged):
        return None
    device = next(policy.parameters()).device
    first = []
    for start in range(0, len(logged), batch_size):
        batch = collate(data, logged[start : start + batch_size])
        score = batch.picks_by_group(policy.of_batch(batch.to(device))[0].cpu()).sum(-1)
        best = score.masked_fill(~batch.by_group(batch.candidates), float("-inf")).argmax(-1, keepdim=True)
        first.append(batch.by_group(batch.rows).gather(1, best).squeeze(1).numpy())
    rows = np.concatenate(first)
    correct, probability = (data.scores[name][rows].astype(float) for name in ("vqa_correct", "vqa_gt_prob"))
    return Measure(shots, np.sort(queries)[logged], correct, probability)


def sampled_kl(
    policy: PointerPolicy, reference: PointerPolicy, data: PointerData, queries: np.ndarray, shots: int
) -> float:
    """KL(policy || reference) of whole sequences, in nats; unbiased, from 4 sampled sequences a query."""
    device = next(policy.parameters()).device
    was_training = policy.training
    policy.eval()
    with torch.inference_mode():
        inputs = tuple(x.to(device) for x in query_inputs(data, queries))
        generator = torch.Generator().manual_seed(0)
        picks, _ = sample(policy, policy.encode(*inputs), shots, 4, generator)
        kl = float(exact_kl(policy, reference, inputs, picks).mean())
    policy.train(was_training)
    return kl


def logged_log_probs(policy: PointerPolicy, data: PointerData, batch_size: int) -> Tensor:
    """Log-probability of every pick of every candidate: [M, S], 0 at padding; without dropout."""
    was_training = policy.training
    policy.eval()
    device = next(policy.parameters()).device
    table = torch.zeros(data.pointers.shape)
    with torch.no_grad():
        for batch in in_order(data, batch_size):
            values = policy.of_batch(batch.to(device))[0].cpu()
            table[batch.rows[batch.candidates], : values.shape[-1]] = values[batch.candidates.flatten(1)]
    policy.train(was_training)
    return table
