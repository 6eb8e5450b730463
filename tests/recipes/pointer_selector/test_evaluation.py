"""Measuring and statistics against known values, the evaluation of a small run, and a small sweep."""

from __future__ import annotations

import json

import numpy as np
import pytest
from pointer_testing import SMALL_WORKLOAD, make_policy

from recipes.pointer_selector.config import PointerRecipe, changed
from recipes.pointer_selector.evaluation import (
    baseline_results,
    evaluate,
    logged_log_probs,
    measure,
)
from tools.pointer_study import report, sweep


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("ARTIFACTS_DIR", str(tmp_path_factory.mktemp("artifacts")))
    values = {f"workload.{name}": value for name, value in SMALL_WORKLOAD.items()}
    values |= {"policy.hidden": 16, "rce.epochs": 1, "grpo.epochs": 1, "grpo.kl.beta": 0.0, "grpo.level": "step"}
    yield changed(PointerRecipe(), {**values, "validation.train_queries": 5})
    patch.undo()


def test_a_small_sweep_is_resumed_rendered_and_evaluated(recipe, tmp_path):
    arms = sweep.arms(recipe, "main/recipe|ratio/step|from supervised/GRPO")
    trials = {f"{name} {seed}": arm.with_seed(seed) for name, arm in arms.items() for seed in (1, 2)}
    first = {"main/recipe 1": trials["main/recipe 1"]}
    assert [name for name, _ in sweep.run_missing(first, tmp_path, 0)] == ["main/recipe 1"]
    # The arm ratio/step comes to the recipe, and shares its trials.
    assert len(list(sweep.run_missing(trials, tmp_path, 0))) == 5  # with the two that are started from
    assert list(sweep.run_missing(trials, tmp_path, 0)) == []
    assert len(list(tmp_path.iterdir())) == 6
    results = sweep.results(arms, (1, 2), tmp_path)
    assert {name: len(entries) for name, entries in results.items()} == dict.fromkeys(arms, 2)
    measured = results["main/recipe"][0]
    report.write(results, {"nearest": dict.fromkeys("1234", 0.5)}, "main/recipe", "COMMAND", 20, tmp_path / "out")
    row = json.loads((tmp_path / "out" / "sweep.json").read_text())["arms"][2]
    differences = [
        np.mean(list(a.test.values())) - np.mean(list(b.test.values()))
        for a, b in zip(results["from supervised/GRPO"], results["main/recipe"], strict=True)
    ]
    assert row["difference"] == pytest.approx(report.mean_interval(differences))
    assert (tmp_path / "out" / "sweep.svg").stat().st_size > 10_000

    one = trials["main/recipe 1"]
    folder = tmp_path / one.digest
    evaluation = evaluate(recipe, folder, [tmp_path / trials["main/recipe 2"].digest], "test")
    assert set(evaluation.results) >= {"random", "no examples", "nearest", "mmr", "oracle", "selector", "its warm-up"}
    accuracy = {str(s): r.correct.mean() for s, r in evaluation.results["selector"].items()}
    assert accuracy == pytest.approx(measured.test)
    for shots, oracle in evaluation.results["oracle"].items():
        assert (oracle.correct >= evaluation.results["selector"][shots].correct).all()
    assert json.loads(json.dumps(evaluation.as_dict()))["trained_for"] == 4


def test_without_a_model_the_most_likely_logged_candidate_counts(data):
    policy = make_policy().float()
    baselines = baseline_results(data, None, [1, 2, 3])
    results = measure(policy, data, None, [2, 3])
    assert list(results) == [2]  # nothing is logged for 3
    total = logged_log_probs(policy, data, batch_size=3).sum(-1).numpy()
    for query, correct in zip(results[2].queries, results[2].correct, strict=True):
        rows = np.flatnonzero((data.candidate_query == query) & (data.lengths == 2))
        outcomes = data.scores["vqa_correct"][rows]
        assert correct == outcomes[total[rows].argmax()]
        for name, expected in {"random": outcomes.mean(), "oracle": outcomes.max()}.items():
            assert baselines[name][2].correct[query] == pytest.approx(expected)
