"""The evaluation of trained selectors against each other and the baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError
from recipes.pointer_selector.checkpoints import load_policy, read_pointer
from recipes.pointer_selector.config import PointerRecipe
from recipes.pointer_selector.evaluation import Comparison, Results, baseline_results, compare, policy_results
from recipes.pointer_selector.preparation import prepare

SELECTOR, WARM_UP = "selector", "its warm-up"
PARTS = ("test", "validation")


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
