"""Accuracy of a policy and its rivals: measuring, validation, baselines, paired tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from recipes.pointer_selector.dataset import PointerData, collate, query_inputs
from recipes.pointer_selector.metrics import KL_ON_POLICY
from recipes.pointer_selector.policy import PointerPolicy, exact_kl, greedy, sample
from recipes.pointer_selector.preparation import prepare
from recipes.pointer_selector.workload import FrozenModel, Outcome
from recipes.statistics import holm, paired_difference

BATCH_SIZE = 256
"""Queries decoded at once."""
RANDOM_DRAWS = 8
ORACLE_SETS = 50_000
"""Largest number of sets that the exhaustive oracle looks at, for each query."""
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


@contextmanager
def evaluating(policy: PointerPolicy) -> Iterator[torch.device]:
    """Switch off dropout and gradients; gives the policy's device."""
    was_training = policy.training
    policy.eval()
    try:
        with torch.no_grad():
            yield next(policy.parameters()).device
    finally:
        policy.train(was_training)


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
    that nothing was logged for are left out.
    """
    queries = np.arange(len(data)) if queries is None else queries
    if model is None:
        by_shots = {s: _best_logged(policy, data, s, queries) for s in shots}
        return {s: result for s, result in by_shots.items() if result is not None}
    picks = decode(policy, data, queries, max(shots))
    return {s: _result(model.outcome(data, queries, picks[:, :s]), queries) for s in shots}


def decode(policy: PointerPolicy, data: PointerData, queries: np.ndarray, shots: int) -> Tensor:
    """Return greedy picks [Q, S]; the first s of them are the greedy picks at s shots.

    Raises:
        RecipeError: a pool is smaller than the number of picks; names the query.
    """
    sizes = data.pool_sizes(queries)
    if len(sizes) and sizes.min() < shots:
        query = data.query_ids[queries[int(sizes.argmin())]]
        raise RecipeError(
            f"the pool of query {query!r} has {sizes.min()} examples, fewer than {shots} shots",
            where="validation.shots",
            fix="ask for fewer shots, or give larger pools",
        )
    picks = []
    with evaluating(policy) as device:
        for start in range(0, len(queries), BATCH_SIZE):
            inputs = [x.to(device) for x in query_inputs(data, queries[start : start + BATCH_SIZE])]
            picks.append(greedy(policy, policy.encode(*inputs), shots)[0].cpu())
    return torch.cat(picks)


def logged_log_probs(policy: PointerPolicy, data: PointerData, batch_size: int = 64) -> Tensor:
    """Return log-probability of every pick of every candidate: [M, S], 0 at padding; without dropout."""
    table = torch.zeros(data.pointers.shape)
    with evaluating(policy) as device:
        for start in range(0, len(data), batch_size):
            batch = collate(data, np.arange(start, min(len(data), start + batch_size)))
            values = policy.of_batch(batch.to(device))[0].cpu()
            table[batch.rows[batch.candidates], : values.shape[-1]] = values[batch.candidates.flatten(1)]
    return table


def sampled_kl(
    policy: PointerPolicy, reference: PointerPolicy, data: PointerData, queries: np.ndarray, shots: int
) -> float:
    """Return KL(policy || reference) of whole sequences, in nats; unbiased, from sampled sequences."""
    with evaluating(policy) as device:
        query, pool, mask = (x.to(device) for x in query_inputs(data, queries))
        inputs = query, pool, mask
        picks, _ = sample(policy, policy.encode(*inputs), shots, KL_DRAWS, torch.Generator().manual_seed(0))
        return float(exact_kl(policy, reference, inputs, picks).mean())


def _result(outcome: Outcome, queries: np.ndarray) -> Result:
    return Result(queries, outcome.correct.double().numpy())


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
            metrics[KL_ON_POLICY] = sampled_kl(policy, self.reference, self.validation, some, self.shot_num)
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


def random_picks(data: PointerData, queries: np.ndarray, shots: int, draws: int, seed: int) -> Tensor:
    """Draw uniform sequences without replacement: [B, draws, S]."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.from_numpy(data.pool_sizes(queries))
    noise = torch.rand(len(queries), draws, int(sizes.max()), generator=generator)
    inside = torch.arange(noise.shape[-1]) < sizes[:, None]
    return noise.masked_fill(~inside[:, None], -1.0).topk(shots, dim=-1).indices


def nearest_picks(data: PointerData, queries: np.ndarray, shots: int) -> Tensor:
    """Return the examples most similar to the query by cosine, the nearest first: [B, S]."""
    similarity, _ = _similarities(data, queries)
    return similarity.topk(shots, dim=-1).indices


def mmr_picks(data: PointerData, queries: np.ndarray, shots: int, balance: float = 0.7) -> Tensor:
    """Pick by maximal marginal relevance: [B, S].

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
    """Return cosines [B, K], -inf outside the pool, and the unit vectors of the pool [B, K, D]."""
    query, pool, mask = query_inputs(data, queries)
    query, pool = functional.normalize(query, dim=-1), functional.normalize(pool, dim=-1)
    return (pool @ query[..., None]).squeeze(-1).masked_fill(~mask, float("-inf")), pool


def baseline_results(data: PointerData, model: FrozenModel | None, shots: Sequence[int]) -> Results:
    """Return baselines by name and number of shots; those that cannot be computed are left out.

    With a frozen model: no examples, random ones, the nearest, maximal marginal relevance, and the best set of all.
    Without one, of the logged candidates: one at random, the one with the highest beam_score, and the best.
    """
    results: Results = {}
    for count in shots:
        baselines = _logged_baselines(data, count) if model is None else _baselines(data, model, count)
        for name, result in baselines.items():
            results.setdefault(name, {})[count] = result
    return results


def _baselines(data: PointerData, model: FrozenModel, shots: int) -> dict[str, Result]:
    queries = np.arange(len(data))
    random = model.outcome(data, queries, random_picks(data, queries, shots, RANDOM_DRAWS, seed=0))
    nearest = nearest_picks(data, queries, shots)
    outcomes = {
        "no examples": model.outcome(data, queries, nearest[:, :0]),
        "nearest": model.outcome(data, queries, nearest),
        "mmr": model.outcome(data, queries, mmr_picks(data, queries, shots)),
        "oracle": model.oracle(data, queries, shots, ORACLE_SETS),
    }
    mean = Result(queries, random.correct.double().mean(1).numpy())
    return {"random": mean, **{name: _result(o, queries) for name, o in outcomes.items() if o is not None}}


def _logged_baselines(data: PointerData, shots: int) -> dict[str, Result]:
    data = data.keep_candidates(data.lengths == shots)
    if not len(data.lengths):
        return {}
    starts, sizes, queries = data.group_starts[:-1], np.diff(data.group_starts), data.group_query
    correct = data.scores["vqa_correct"].astype(float)
    results = {
        "random": Result(queries, np.add.reduceat(correct, starts) / sizes),
        "oracle": Result(queries, np.maximum.reduceat(correct, starts)),
    }
    score = data.scores["beam_score"]
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

    queries: int
    trained_for: int
    results: Results
    comparisons: list[Comparison]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "queries": self.queries,
            "trained_for": self.trained_for,
            "accuracy": accuracies(self.results),
            "tests": [asdict(comparison) for comparison in self.comparisons],
        }


def accuracies(results: Results) -> dict[str, dict[str, float]]:
    """Return mean accuracy by method and number of shots, for JSON."""
    return {name: {str(s): r.accuracy for s, r in by.items()} for name, by in results.items()}


def evaluate(recipe: PointerRecipe, folder: Path, against: Sequence[Path], part: str) -> Evaluation:
    """Measure a selector, its warm-up where the folder has one, others, and the baselines, on the same queries.

    Raises:
        RecipeError: no checkpoint, an unknown part, or embeddings of another size than the selector was trained on.
    """
    if part not in ("test", "validation"):
        raise RecipeError(f"there is no part {part!r}", where="--part", fix="use one of test, validation")
    ours, warm_up = "selector", "its warm-up"
    policy, config = selector.load(folder)
    policies = {ours: policy}
    if (folder / selector.WARM_UP).is_dir():
        policies[warm_up] = selector.load(folder / selector.WARM_UP)[0]
    policies |= {str(other): selector.load(other)[0] for other in against}
    prepared = prepare(recipe)
    data, shots = prepared.parts[part], recipe.validation.shots
    here = data.queries.shape[1], data.examples.shape[1]
    results = baseline_results(data, prepared.model, shots)
    rivals = [name for name in ("nearest", "mmr", "beam_score") if name in results]
    for name, trained in policies.items():
        if (widths := (trained.query_width, trained.pool_width)) != here:
            raise RecipeError(
                f"{name} was trained on embeddings of {widths[0]} and {widths[1]} features; this data has {here[0]} "
                f"and {here[1]}",
                where="checkpoint",
                fix="evaluate on embeddings of the same encoder",
            )
        results[name] = measure(trained, data, prepared.model, shots)
    pairs = [(ours, rival) for rival in (*rivals, *policies) if rival != ours]
    if warm_up in policies and "nearest" in results:
        pairs.append((warm_up, "nearest"))
    clusters = data.query_rows.tolist()  # queries that share an image share its embedding
    return Evaluation(len(data), config["shot_num"], results, compare(results, pairs, clusters))
