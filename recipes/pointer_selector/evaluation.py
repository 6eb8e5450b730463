"""Accuracy of a policy and of baselines: measuring, validation, paired tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from recipes.errors import RecipeError
from recipes.pointer_selector import selector
from recipes.pointer_selector.config import PointerRecipe
from recipes.pointer_selector.dataset import PointerData, Prepared, collate, shot_num
from recipes.pointer_selector.selector import PointerPolicy, exact_kl, greedy, sample
from recipes.pointer_selector.workload import FrozenModel
from recipes.statistics import holm, paired_difference

VALIDATION, TRAINING = (f"{part}-core/pointer_selector/accuracy/mean" for part in ("val", "train"))
"""Metrics: mean accuracy over shots, on validation and on training queries."""
BATCH_SIZE = 256
"""Queries decoded at once."""
RANDOM_DRAWS = 8
KL_QUERIES, KL_DRAWS = 64, 4
"""Numbers of validation queries from which the policy's KL is estimated, and of sequences sampled for each."""


@dataclass(frozen=True)
class Result:
    """Results of one method at one number of shots, on Q queries."""

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
    """Results of a policy's greedy choices by number of shots.

    With a frozen model, the policy picks out of the whole pool and the model answers. Without one, only logged
    candidates have a known outcome: the policy ranks each group's candidates, and the highest-ranked one counts;
    numbers of shots without a logged candidate are left out. Leaves the policy in eval mode.
    """
    queries = np.arange(len(data)) if queries is None else queries
    if model is None:
        results = {}
        for s in shots:
            wanted = (data.lengths == s) & np.isin(data.candidate_query, queries)
            if wanted.any():
                logged = data.keep_candidates(wanted).with_candidates()
                score = logged_log_probs(policy, logged).sum(-1).numpy()
                best = logged.outcomes[_highest(score, logged)]
                results[s] = Result(np.unique(data.candidate_query[wanted]), best)
        return results
    parts = []
    policy.eval()
    for start in range(0, len(queries), BATCH_SIZE):
        inputs = [x.to(policy.device) for x in data.inputs(queries[start : start + BATCH_SIZE])]
        parts.append(greedy(policy, policy.encode(*inputs), max(shots)).cpu())
    picks = torch.cat(parts)  # the first s of them are the greedy picks at s shots
    return {s: _ask(model, data, queries, picks[:, :s]) for s in shots}


@torch.no_grad()
def logged_log_probs(policy: PointerPolicy, data: PointerData, batch_size: int = 64) -> Tensor:
    """Log-probability of every pick of every candidate: [M, S], 0 at padding; leaves the policy in eval mode."""
    table = torch.zeros(data.pointers.shape)
    policy.eval()
    for start in range(0, len(data), batch_size):
        batch = collate(data, np.arange(start, min(len(data), start + batch_size)))
        on_device = batch.to(policy.device)
        values = policy.step_log_probs(on_device.inputs, on_device.pointers, on_device.steps)[0].cpu()
        table[batch.rows[batch.candidates], : values.shape[-1]] = values[batch.candidates.flatten(1)]
    return table


def _ask(model: FrozenModel, data: PointerData, queries: np.ndarray, picks: Tensor) -> Result:
    """1 where the frozen model answers a query right, else 0; for picks [Q, N, S], the mean over N sequences."""
    rows = torch.from_numpy(data.query_rows[queries])
    correct = model.answer(rows, model.votes(rows, data.pool_rows(queries)), picks)[0].double()
    return Result(queries, correct.reshape(len(queries), -1).mean(1).numpy())


def _highest(score: np.ndarray, data: PointerData) -> np.ndarray:
    """Return [G], the candidate with the highest score [M] of each group; the first of equal ones."""
    groups = np.repeat(np.arange(len(data.group_query)), np.diff(data.group_starts))
    return np.lexsort((-score, groups))[data.group_starts[:-1]]


@torch.no_grad()
def validate(
    recipe: PointerRecipe, prepared: Prepared, policy: PointerPolicy, reference: PointerPolicy | None
) -> dict[str, float]:
    """Accuracies by shots and their means, `VALIDATION` and `TRAINING`, and the KL to a reference.

    Some training queries are measured like the validation queries, so that over-fitting shows.

    Raises RecipeError where no logged candidate has a number of picks of `validation.shots`, or where one that the
    policy ranks highest lacks vqa_correct.
    """
    train, validation, shots = prepared.parts["train"], prepared.parts["validation"], recipe.validation.shots
    some = np.sort(np.random.default_rng(0).permutation(len(train))[: recipe.validation.train_queries])
    every, metrics = np.arange(len(validation)), dict[str, float]()
    for name, data, queries in (("val", validation, every), ("train", train, some)):
        results = measure(policy, data, prepared.model, shots, queries=queries) if len(queries) else {}
        for result in results.values():
            if (unknown := np.isnan(result.correct)).any():
                query = data.query_ids[result.queries[int(unknown.argmax())]]
                what = f"query {query!r} has a candidate without vqa_correct, which validation counts"
                raise RecipeError(what, where="data.candidates", fix="log that number")
        accuracy = {f"{name}-core/pointer_selector/acc/shots@{s}": each.accuracy for s, each in results.items()}
        if results:
            mean = float(np.mean(list(accuracy.values())))
            metrics |= {**accuracy, f"{name}-core/pointer_selector/accuracy/mean": mean}
    if VALIDATION not in metrics:
        fix = "log candidates with those numbers of picks, or set validation.shots"
        raise RecipeError(f"no candidate has {shots} picks", where="validation.shots", fix=fix)
    if reference is not None:
        query, pool, mask = (x.to(policy.device) for x in validation.inputs(every[:KL_QUERIES]))
        inputs, generator = (query, pool, mask), torch.Generator().manual_seed(0)
        picks = sample(policy, policy.encode(*inputs), shot_num(recipe, train), KL_DRAWS, generator)
        metrics["val-aux/pointer_selector/kl_on_policy"] = float(exact_kl(policy, reference, inputs, picks).mean())
    return metrics


def baseline_results(data: PointerData, model: FrozenModel | None, shots: Sequence[int]) -> Results:
    """Baselines by name and number of shots; those that cannot be computed are left out.

    With a frozen model: no examples, random ones and the nearest. Without one, of the logged candidates: one at random,
    and the one with the highest beam_score.
    """
    results: Results = {}
    for count in shots:
        if model is not None:
            queries = np.arange(len(data))
            query, pool, mask = data.inputs(queries)
            noise = torch.rand(len(queries), RANDOM_DRAWS, pool.shape[1], generator=torch.Generator().manual_seed(0))
            random = noise.masked_fill(~mask[:, None], -1.0).topk(count, dim=-1).indices
            cosine = (functional.normalize(pool, dim=-1) @ functional.normalize(query, dim=-1)[..., None]).squeeze(-1)
            nearest = cosine.masked_fill(~mask, float("-inf")).topk(count, dim=-1).indices
            for name, picks in {"random": random, "no examples": nearest[:, :0], "nearest": nearest}.items():
                results.setdefault(name, {})[count] = _ask(model, data, queries, picks)
        elif len((logged := data.keep_candidates(data.lengths == count)).lengths):
            queries, correct, score = logged.group_query, logged.outcomes, logged.scores["beam_score"]
            starts, sizes = logged.group_starts[:-1], np.diff(logged.group_starts)
            results.setdefault("random", {})[count] = Result(queries, np.add.reduceat(correct, starts) / sizes)
            if not np.isnan(score).any():
                results.setdefault("beam_score", {})[count] = Result(queries, correct[_highest(score, logged)])
    return results


def compare(results: Results, pairs: Sequence[tuple[str, str]], clusters: Sequence[int]) -> list[dict[str, Any]]:
    """Paired tests of each pair (a, b) at each number of shots that both have.

    `clusters` [Q] has an id of each query's image: queries of one image are not independent. A test has the mean
    `difference` of a - b with its 95% interval `low` to `high`, the numbers of queries that only one of the two gets
    right, `a_only` and `b_only`, and the p-value after Holm over all tests, `p_holm`.
    """
    rows: list[dict[str, Any]] = []
    for a, b in pairs:
        for shots in sorted(set(results[a]) & set(results[b])):
            ours, theirs = results[a][shots], results[b][shots]
            of = [clusters[query] for query in ours.queries]
            test = paired_difference(theirs.correct, ours.correct, bounds=(0.0, 1.0), clusters=of)
            row = {"a": a, "b": b, "shots": shots, "difference": test.difference.value}
            row |= {"low": test.difference.low, "high": test.difference.high}
            rows.append(row | {"a_only": test.won, "b_only": test.lost, "p_holm": test.p_value})
    for row, corrected in zip(rows, holm([row["p_holm"] for row in rows]), strict=True):
        row["p_holm"] = corrected
    return rows


def evaluate(prepared: Prepared, folder: Path, shots: Sequence[int], part: str = "test") -> dict[str, Any]:
    """Measure an experiment's selector, its warm-up, and the baselines on the same queries.

    Returns `accuracy` by method and number of shots (text), `tests` (see `compare`), `part`, its number of `queries`,
    and the number of shots that the selector was `trained_for`. Raises RecipeError where there is no checkpoint, or
    one of embeddings of another size.
    """
    data = prepared.parts[part]
    results = baseline_results(data, prepared.model, shots)
    rivals = [name for name in ("nearest", "beam_score") if name in results]
    policy, config = selector.load(folder / selector.BEST)
    here, trained = data.widths, (policy.query_width, policy.pool_width)
    if trained != here:
        what = f"the selector was trained on embeddings of {trained} features, and this data has {here}"
        raise RecipeError(what, where=str(folder), fix="evaluate on embeddings of the same encoder")
    warm_up = selector.load(folder / selector.WARM_UP)[0]
    for name, measured in {"selector": policy, "warm-up": warm_up}.items():
        results[name] = measure(measured, data, prepared.model, shots)
    pairs = [("selector", rival) for rival in (*rivals, "warm-up")] + [("warm-up", rival) for rival in rivals]
    return {
        "part": part,
        "measure": "right answers" if data.has_truth else "beam_score of the picks, 0 to 1 within a group,",
        "queries": len(data),
        "trained_for": config["shot_num"],
        "accuracy": {name: {str(s): r.accuracy for s, r in by_shots.items()} for name, by_shots in results.items()},
        # Queries that share an image share its embedding.
        "tests": compare(results, pairs, data.query_rows.tolist()),
    }
