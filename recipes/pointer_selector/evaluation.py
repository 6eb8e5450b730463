"""Accuracy of a policy and of baselines: measuring, validation, paired tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from recipes.errors import RecipeError
from recipes.pointer_selector import selector
from recipes.pointer_selector.config import PointerRecipe
from recipes.pointer_selector.dataset import PointerData, collate
from recipes.pointer_selector.policy import PointerPolicy, exact_kl, greedy, sample
from recipes.pointer_selector.preparation import Prepared
from recipes.pointer_selector.workload import FrozenModel
from recipes.statistics import holm, paired_difference

BATCH_SIZE = 256
"""Queries decoded at once."""
RANDOM_DRAWS = 8
KL_QUERIES, KL_DRAWS = 64, 4
"""The KL of the policy is estimated from so many sampled sequences of so many validation queries."""


@dataclass(frozen=True)
class Result:
    """One way of choosing at one number of shots, on Q queries."""

    queries: np.ndarray  # [Q], their numbers in the data
    correct: np.ndarray  # [Q], 0 or 1; a share where a method is random

    @property
    def accuracy(self) -> float:
        """Return the share of right answers."""
        return float(self.correct.mean())


Results = dict[str, dict[int, Result]]
"""By method and number of shots."""


@torch.no_grad()
def measure(
    policy: PointerPolicy,
    data: PointerData,
    model: FrozenModel | None,
    shots: Sequence[int],
    *,
    queries: np.ndarray | None = None,
) -> dict[int, Result]:
    """Return results of a policy's greedy choices by number of shots.

    With a frozen model, the policy picks out of the whole pool and the model answers. Without one, only logged
    candidates have a known outcome: the policy ranks those of each group, and the first one counts; numbers of shots
    that nothing was logged for are left out. Leaves the policy in eval mode.
    """
    queries = np.arange(len(data)) if queries is None else queries
    if model is None:
        by_shots = {s: _best_logged(policy, data, s, queries) for s in shots}
        return {s: result for s, result in by_shots.items() if result is not None}
    parts = []
    policy.eval()
    for start in range(0, len(queries), BATCH_SIZE):
        inputs = [x.to(policy.device) for x in data.inputs(queries[start : start + BATCH_SIZE])]
        parts.append(greedy(policy, policy.encode(*inputs), max(shots)).cpu())
    picks = torch.cat(parts)  # the first s of them are the greedy picks at s shots
    return {s: _ask(model, data, queries, picks[:, :s]) for s in shots}


@torch.no_grad()
def logged_log_probs(policy: PointerPolicy, data: PointerData, batch_size: int = 64) -> Tensor:
    """Return log-probability of every pick of every candidate: [M, S], 0 at padding; leaves the policy in eval mode."""
    table = torch.zeros(data.pointers.shape)
    policy.eval()
    for start in range(0, len(data), batch_size):
        batch = collate(data, np.arange(start, min(len(data), start + batch_size)))
        values = policy.of_batch(batch.to(policy.device))[0].cpu()
        table[batch.rows[batch.candidates], : values.shape[-1]] = values[batch.candidates.flatten(1)]
    return table


@torch.no_grad()
def sampled_kl(
    policy: PointerPolicy, reference: PointerPolicy, data: PointerData, queries: np.ndarray, shots: int
) -> float:
    """Return KL(policy || reference) of whole sequences, in nats; unbiased, from sampled sequences."""
    policy.eval()
    query, pool, mask = (x.to(policy.device) for x in data.inputs(queries))
    inputs = query, pool, mask
    picks = sample(policy, policy.encode(*inputs), shots, KL_DRAWS, torch.Generator().manual_seed(0))
    return float(exact_kl(policy, reference, inputs, picks).mean())


def _ask(model: FrozenModel, data: PointerData, queries: np.ndarray, picks: Tensor) -> Result:
    """Return the frozen model's answers; of several sequences a query, picks [Q, N, S], their mean."""
    correct = model.outcome(data, queries, picks).correct.double()
    return Result(queries, correct.reshape(len(queries), -1).mean(1).numpy())


def _best_logged(policy: PointerPolicy, data: PointerData, shots: int, queries: np.ndarray) -> Result | None:
    """Return the outcomes of each query's most likely logged candidate; None where none has that many picks."""
    wanted = (data.lengths == shots) & np.isin(data.candidate_query, queries)
    logged = np.unique(data.candidate_query[wanted])
    if not len(logged):
        return None
    data = data.keep_candidates(wanted).with_candidates()
    score = logged_log_probs(policy, data).sum(-1).numpy()
    return Result(logged, data.scores["vqa_correct"][_highest(score, data)].astype(float))


def _highest(score: np.ndarray, data: PointerData) -> np.ndarray:
    """Return [G], the candidate with the highest score [M] of each group; the first of equal ones."""
    groups = np.repeat(np.arange(len(data.group_query)), np.diff(data.group_starts))
    order: np.ndarray = np.lexsort((-score, groups))
    first: np.ndarray = order[data.group_starts[:-1]]
    return first


class Validator:
    """Measures the validation queries, and some training queries in the same way, so that over-fitting shows.

    `reference` is the warm-up policy, once there is one; the KL to it is then estimated from samples.
    """

    def __init__(
        self, recipe: PointerRecipe, train: PointerData, validation: PointerData, model: FrozenModel | None
    ) -> None:
        self.config, self.shot_num, self.model = recipe.validation, recipe.data.shot_num, model
        self.train, self.validation = train, validation
        self.sample = np.sort(np.random.default_rng(0).permutation(len(train))[: self.config.train_queries])
        self.reference: PointerPolicy | None = None

    def __call__(self, policy: PointerPolicy) -> tuple[dict[str, float], float, float]:
        """Return metrics, and the mean accuracy over shots on validation and on training queries (NaN: none).

        Raises:
            RecipeError: nothing is logged at the shots of validation, or without vqa_correct.
        """
        metrics, value = self._part("val", policy, self.validation, np.arange(len(self.validation)))
        train_metrics, train_value = self._part("train", policy, self.train, self.sample)
        if np.isnan(value):
            fix = "log candidates with those numbers of picks, or set validation.shots"
            raise RecipeError(f"no candidate has {self.config.shots} picks", where="validation.shots", fix=fix)
        if self.reference is not None:
            some = np.arange(min(KL_QUERIES, len(self.validation)))
            metrics["val-aux/pointer_selector/kl_on_policy"] = sampled_kl(
                policy, self.reference, self.validation, some, self.shot_num
            )
        return metrics | train_metrics, value, train_value

    def _part(
        self, name: str, policy: PointerPolicy, data: PointerData, queries: np.ndarray
    ) -> tuple[dict[str, float], float]:
        results = measure(policy, data, self.model, self.config.shots, queries=queries) if len(queries) else {}
        for result in results.values():
            if (unknown := np.isnan(result.correct)).any():
                query = data.query_ids[result.queries[int(unknown.argmax())]]
                what = f"query {query!r} has a candidate without vqa_correct, which validation counts"
                raise RecipeError(what, where="data.candidates", fix="log that number")
        if not results:
            return {}, float("nan")
        metrics = {f"{name}-core/pointer_selector/acc/shots@{s}": result.accuracy for s, result in results.items()}
        value = float(np.mean(list(metrics.values())))
        return {**metrics, f"{name}-core/pointer_selector/accuracy/mean": value}, value


def baseline_results(data: PointerData, model: FrozenModel | None, shots: Sequence[int]) -> Results:
    """Return baselines by name and number of shots; those that cannot be computed are left out.

    With a frozen model: no examples, random ones and the nearest. Without one, of the logged candidates: one at random,
    and the one with the highest beam_score.
    """
    results: Results = {}
    for count in shots:
        for name, result in (
            _logged_baselines(data, count) if model is None else _baselines(data, model, count)
        ).items():
            results.setdefault(name, {})[count] = result
    return results


def _baselines(data: PointerData, model: FrozenModel, shots: int) -> dict[str, Result]:
    queries = np.arange(len(data))
    query, pool, mask = data.inputs(queries)
    noise = torch.rand(len(queries), RANDOM_DRAWS, pool.shape[1], generator=torch.Generator().manual_seed(0))
    random = noise.masked_fill(~mask[:, None], -1.0).topk(shots, dim=-1).indices
    cosine = (functional.normalize(pool, dim=-1) @ functional.normalize(query, dim=-1)[..., None]).squeeze(-1)
    nearest = cosine.masked_fill(~mask, float("-inf")).topk(shots, dim=-1).indices
    picks = {"random": random, "no examples": nearest[:, :0], "nearest": nearest}
    return {name: _ask(model, data, queries, of_method) for name, of_method in picks.items()}


def _logged_baselines(data: PointerData, shots: int) -> dict[str, Result]:
    data = data.keep_candidates(data.lengths == shots)
    if not len(data.lengths):
        return {}
    queries, correct, score = data.group_query, data.scores["vqa_correct"].astype(float), data.scores["beam_score"]
    results = {"random": Result(queries, np.add.reduceat(correct, data.group_starts[:-1]) / np.diff(data.group_starts))}
    if not np.isnan(score).any():
        results["beam_score"] = Result(queries, correct[_highest(score, data)])
    return results


@dataclass(frozen=True)
class Comparison:
    """A paired test at one number of shots.

    `difference` is the mean of a - b, `low` to `high` its 95% interval; `a_only` and `b_only` count the queries that
    only one of the two gets right; `p_holm` is the p-value after Holm.
    """

    a: str
    b: str
    shots: int
    difference: float
    low: float | None
    high: float | None
    a_only: int
    b_only: int
    p_holm: float


def compare(results: Results, pairs: Sequence[tuple[str, str]], clusters: Sequence[int]) -> list[Comparison]:
    """Return paired tests of each pair at each number of shots that both have, with Holm's correction over all.

    `clusters` [Q] says which queries are of one image: they are not independent.
    """
    rows: list[Comparison] = []
    for a, b in pairs:
        for shots in sorted(set(results[a]) & set(results[b])):
            ours, theirs = results[a][shots], results[b][shots]
            if np.array_equal(ours.queries, theirs.queries):
                of = [clusters[query] for query in ours.queries]
                test = paired_difference(theirs.correct, ours.correct, bounds=(0.0, 1.0), clusters=of)
                gain = test.difference
                rows.append(Comparison(a, b, shots, gain.value, gain.low, gain.high, test.won, test.lost, test.p_value))
    return [replace(row, p_holm=p) for row, p in zip(rows, holm([row.p_holm for row in rows]), strict=True)]


@dataclass(frozen=True)
class Evaluation:
    """Results by method and shots, rows of `compare`, and the number of shots that the selector was trained for."""

    part: str
    queries: int
    trained_for: int
    results: Results
    comparisons: list[Comparison]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: accuracy by method and number of shots, and the tests."""
        accuracy = {name: {str(s): r.accuracy for s, r in by.items()} for name, by in self.results.items()}
        tests = [asdict(comparison) for comparison in self.comparisons]
        facts = {"part": self.part, "queries": self.queries, "trained_for": self.trained_for}
        return {**facts, "accuracy": accuracy, "tests": tests}


def evaluate(
    prepared: Prepared, folder: Path, shots: Sequence[int], against: Sequence[Path] = (), part: str = "test"
) -> Evaluation:
    """Measure a selector, its warm-up where the folder has one, others, and the baselines, on the same queries.

    Raises:
        RecipeError: no checkpoint, an unknown part, or embeddings of another size than the selector was trained on.
    """
    if part not in ("test", "validation"):
        raise RecipeError(f"there is no part {part!r}", where="--part", fix="use one of test, validation")
    ours, warm_up = "selector", "warm-up"
    policy, config = selector.load(folder)
    policies = {ours: policy}
    if (folder / selector.WARM_UP).is_dir():
        policies[warm_up] = selector.load(folder / selector.WARM_UP)[0]
    policies |= {str(other): selector.load(other)[0] for other in against}
    data = prepared.parts[part]
    here = data.queries.shape[1], data.examples.shape[1]
    results = baseline_results(data, prepared.model, shots)
    rivals = [name for name in ("nearest", "beam_score") if name in results]
    for name, trained in policies.items():
        if (widths := (trained.query_width, trained.pool_width)) != here:
            raise RecipeError(
                f"{name} was trained on embeddings of {widths} features, and this data has {here}",
                where="checkpoint",
                fix="evaluate on embeddings of the same encoder",
            )
        results[name] = measure(trained, data, prepared.model, shots)
    pairs = [(ours, rival) for rival in (*rivals, *policies) if rival != ours]
    pairs += [(warm_up, rival) for rival in rivals if warm_up in policies]
    clusters = data.query_rows.tolist()  # queries that share an image share its embedding
    return Evaluation(part, len(data), config["shot_num"], results, compare(results, pairs, clusters))
