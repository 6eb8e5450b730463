"""Selectors and baselines on the test queries, at every number of shots, with paired tests."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from recipes.pointer_selector import baselines
from recipes.pointer_selector.data import PointerData
from recipes.pointer_selector.frozen_model import FrozenModel, Verdict
from recipes.pointer_selector.measuring import measure
from recipes.pointer_selector.policy import PointerPolicy
from recipes.pointer_selector.statistics import Paired, holm, paired

RANDOM_DRAWS = 8
ORACLE_SETS = 50_000
"""Largest number of sets that the exhaustive oracle looks at, for each query."""


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
