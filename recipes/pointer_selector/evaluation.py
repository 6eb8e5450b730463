"""Selectors and baselines on the test queries, at every number of shots, with paired tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recipes.errors import RecipeError
from recipes.pointer_selector import baselines
from recipes.pointer_selector.checkpoints import load_policy, read_pointer
from recipes.pointer_selector.config import PointerRecipe
from recipes.pointer_selector.data import PointerData
from recipes.pointer_selector.frozen_model import FrozenModel, Verdict
from recipes.pointer_selector.measuring import measure
from recipes.pointer_selector.policy import PointerPolicy
from recipes.pointer_selector.preparation import prepare
from recipes.pointer_selector.statistics import Paired, paired
from recipes.statistics import holm

RANDOM_DRAWS = 8
ORACLE_SETS = 50_000
"""Largest number of sets that the exhaustive oracle looks at, for each query."""
SELECTOR, WARM_UP = "selector", "its warm-up"
PARTS = ("test", "validation")


@dataclass(frozen=True)
class Result:
    """One way of choosing at one number of shots: [Q] each.

    `correct` is a share where a method is random, and `probability` that of the right answer (NaN if unknown).
    """

    correct: np.ndarray
    probability: np.ndarray


Results = dict[str, dict[int, Result]]


def baseline_results(data: PointerData, judge: FrozenModel | None, shots: list[int]) -> Results:
    """Baselines by name and number of shots; those that cannot be computed are left out.

    With a frozen model: no examples, random ones, the nearest, maximal marginal relevance, and the best set of all.
    Without one, of the logged candidates: one at random, the one with the highest beam_score, and the best.
    """
    found: Results = {}
    for count in shots:
        results = _logged(data, count) if judge is None else _asked(data, judge, count)
        for name, result in results.items():
            found.setdefault(name, {})[count] = result
    return found


def policy_results(
    policy: PointerPolicy, data: PointerData, judge: FrozenModel | None, shots: list[int]
) -> dict[int, Result]:
    """A policy's greedy choices (without a frozen model: its first choice among the logged candidates)."""
    return {m.shots: Result(m.correct, m.probability) for m in measure(policy, data, judge, shots)}


def _asked(data: PointerData, judge: FrozenModel, shots: int) -> dict[str, Result]:
    queries = np.arange(len(data))
    random = judge.verdict(data, queries, baselines.random_picks(data, queries, shots, RANDOM_DRAWS, seed=0))
    verdicts = {
        "no examples": judge.verdict(data, queries, baselines.nearest_picks(data, queries, shots)[:, :0]),
        "nearest": judge.verdict(data, queries, baselines.nearest_picks(data, queries, shots)),
        "mmr": judge.verdict(data, queries, baselines.mmr_picks(data, queries, shots)),
        "oracle": judge.oracle(data, queries, shots, ORACLE_SETS),
    }
    results = {"random": Result(random.correct.double().mean(1).numpy(), random.probability.mean(1).numpy())}
    return results | {name: _result(verdict) for name, verdict in verdicts.items() if verdict is not None}


def _result(verdict: Verdict) -> Result:
    return Result(verdict.correct.double().numpy(), verdict.probability.numpy())


def _logged(data: PointerData, shots: int) -> dict[str, Result]:
    data = data.keep_candidates(data.lengths == shots)
    if not len(data.lengths):
        return {}
    starts, sizes = data.group_starts[:-1], np.diff(data.group_starts)
    correct, probability = (data.scores[name].astype(float) for name in ("vqa_correct", "vqa_gt_prob"))
    results = {
        "random": Result(np.add.reduceat(correct, starts) / sizes, np.add.reduceat(probability, starts) / sizes),
        "oracle": Result(np.maximum.reduceat(correct, starts), np.maximum.reduceat(probability, starts)),
    }
    score = data.scores["beam_score"]
    if not np.isnan(score).any():
        first = np.lexsort((-score, np.repeat(np.arange(len(sizes)), sizes)))[starts]
        results["beam_score"] = Result(correct[first], probability[first])
    return results


@dataclass(frozen=True)
class Comparison:
    """A paired test at one number of shots; `p_holm` is adjusted over all comparisons of the table."""

    a: str
    b: str
    shots: int
    test: Paired
    p_holm: float

    def as_dict(self) -> dict:
        return {"a": self.a, "b": self.b, "shots": self.shots, **asdict(self.test), "p_holm": self.p_holm}


def compare(results: Results, pairs: list[tuple[str, str]], clusters: np.ndarray) -> list[Comparison]:
    """Paired tests of each pair at each number of shots that both have, with Holm's correction over all of them."""
    tests = [
        (a, b, count, paired(results[a][count].correct, results[b][count].correct, clusters))
        for a, b in pairs
        for count in sorted(set(results[a]) & set(results[b]))
        if len(results[a][count].correct) == len(results[b][count].correct) == len(clusters)
    ]
    adjusted = holm([test.p_value for *_, test in tests])
    return [Comparison(*row, p_holm=p) for row, p in zip(tests, adjusted, strict=True)]


@dataclass(frozen=True)
class Evaluation:
    """Results by method and shots, paired tests, and what the selector was trained for."""

    queries: int
    trained_for: int
    results: Results
    comparisons: list[Comparison]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        accuracy = {name: {str(s): float(r.correct.mean()) for s, r in by.items()} for name, by in self.results.items()}
        return {
            "queries": self.queries,
            "trained_for": self.trained_for,
            "accuracy": accuracy,
            "tests": [comparison.as_dict() for comparison in self.comparisons],
        }


def evaluate(recipe: PointerRecipe, folder: Path, against: Sequence[Path], part: str) -> Evaluation:
    """Measure a selector, its warm-up where the folder has one, others, and the baselines, on the same queries.

    Raises:
        RecipeError: no checkpoint, an unknown part, or embeddings of another size than the selector was trained on.
    """
    if part not in PARTS:
        raise RecipeError(f"there is no part {part!r}", where="--part", fix=f"use one of {', '.join(PARTS)}")
    policy, config = load_policy(folder)
    prepared = prepare(recipe)
    data, shots = prepared.parts[part], recipe.validation.shots
    policies = {SELECTOR: policy}
    warm_up = read_pointer(folder, "warm_up.json")
    if warm_up:
        policies[WARM_UP] = load_policy(folder / warm_up["folder"])[0]
    policies |= {str(other): load_policy(other)[0] for other in against}
    results = baseline_results(data, prepared.judge, shots)
    rivals = [name for name in ("nearest", "mmr", "beam_score") if name in results]
    for name, trained in policies.items():
        _require_widths(trained.query_width, trained.pool_width, data.queries.width, data.examples.width, name)
        results[name] = policy_results(trained, data, prepared.judge, shots)
    rivals += [name for name in policies if name != SELECTOR]
    pairs = [(SELECTOR, rival) for rival in rivals] + (
        [(WARM_UP, "nearest")] if WARM_UP in policies and "nearest" in results else []
    )
    clusters = data.query_rows  # queries that share an image share its embedding
    return Evaluation(len(data), config["shot_num"], results, compare(results, pairs, clusters))


def _require_widths(query: int, pool: int, data_query: int, data_pool: int, name: str) -> None:
    if (query, pool) != (data_query, data_pool):
        raise RecipeError(
            f"{name} was trained on embeddings of {query} and {pool} features; "
            f"this data has {data_query} and {data_pool}",
            where="checkpoint",
            fix="evaluate on embeddings of the same encoder",
        )
