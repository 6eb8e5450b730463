"""Measuring and statistics against known values, the evaluation of a small run, and a small sweep."""

from __future__ import annotations

import json

import numpy as np
import pytest
from pointer_testing import SMALL_WORKLOAD, make_policy
from scipy import stats

from recipes.errors import RecipeError
from recipes.pointer_selector import report, sweep
from recipes.pointer_selector.config import PointerRecipe, changed
from recipes.pointer_selector.evaluation import (
    Result,
    Validator,
    baseline_results,
    cluster_bootstrap,
    compare,
    evaluate,
    logged_log_probs,
    measure,
)
from recipes.statistics import holm

RNG = np.random.default_rng(0)


def test_comparisons_count_test_and_adjust():
    a = np.array([1] * 12 + [0] * 3 + [1] * 20 + [0] * 5, float)
    b = np.array([0] * 12 + [1] * 3 + [1] * 20 + [0] * 5, float)
    nothing = np.zeros(40)
    results = {name: {s: Result(np.arange(40), x, nothing) for s in (1, 2)} for name, x in {"a": a, "b": b}.items()}
    rows = compare(results, [("a", "b"), ("a", "a")], np.arange(40))
    assert [(c.shots, c.a_only, c.b_only) for c in rows] == [(1, 12, 3), (2, 12, 3), (1, 0, 0), (2, 0, 0)]
    assert rows[0].difference == pytest.approx(9 / 40)
    assert rows[0].p_value == pytest.approx(2 * stats.binom.cdf(3, 15, 0.5))
    assert rows[0].low < rows[0].difference < rows[0].high
    assert (rows[2].p_value, rows[2].low, rows[2].high) == (1.0, 0.0, 0.0)
    assert [c.p_holm for c in rows] == pytest.approx(holm([c.p_value for c in rows]))


def test_the_bootstrap_has_the_width_of_the_standard_error():
    values = RNG.normal(size=400)
    low, high = cluster_bootstrap(values, np.arange(400))
    assert (high - low) / 2 == pytest.approx(1.96 * values.std() / np.sqrt(400), rel=0.06)
    repeated = np.repeat(values, 4)
    clustered = cluster_bootstrap(repeated, np.repeat(np.arange(400), 4))
    assert clustered == pytest.approx((low, high))  # four copies of a query are worth one
    naive = cluster_bootstrap(repeated, np.arange(1600))
    assert naive[1] - naive[0] < 0.6 * (high - low)


def test_baselines_of_logged_candidates(data):
    found = baseline_results(data, None, [1, 2, 3])
    assert set(found) == {"random", "oracle", "beam_score"}
    assert set(found["oracle"]) == {1, 2}
    for query in range(len(data)):
        rows = np.flatnonzero((data.candidate_query == query) & (data.lengths == 2))
        correct = data.scores["vqa_correct"][rows]
        assert found["random"][2].correct[query] == pytest.approx(correct.mean())
        assert found["oracle"][2].correct[query] == correct.max()
        assert found["beam_score"][2].correct[query] == correct[data.scores["beam_score"][rows].argmax()]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("artifacts")
    patch = pytest.MonkeyPatch()
    patch.setenv("ARTIFACTS_DIR", str(folder))
    values = {f"workload.{name}": value for name, value in SMALL_WORKLOAD.items()}
    small = {
        "policy.hidden": 16,
        "rce.epochs": 1,
        "grpo.epochs": 1,
        "grpo.kl.beta": 0.0,
        "grpo.level": "step",
        "validation.train_queries": 5,
        "reward.mode": "probability",
    }
    yield changed(PointerRecipe(), values | small)
    patch.undo()


def test_a_small_sweep_is_resumed_and_rendered(recipe, tmp_path):
    chosen = [arm for arm in sweep.arms(recipe) if arm.name in ("main/recipe", "ratio/step", "from supervised/GRPO")]
    trials = [(f"{arm.name} {seed}", sweep.trial(arm, seed)) for arm in chosen for seed in (1, 2)]
    names: list[str] = []

    def run(trials, seconds=float("inf")):
        names.clear()
        workers = sweep.Workers(0, 0, seconds)
        return sweep.sweep(trials, tmp_path, workers, lambda name, result, left: names.append(name))

    assert run(trials, seconds=-1) == 8  # two warm-ups, two supervised, and two of each that starts from them
    assert names == []
    assert run(trials[:1]) == 0
    assert names == ["main/recipe 1, what it starts from", "main/recipe 1"]
    assert run(trials) == 0
    assert len(names) == 6  # the arm ratio/step comes to the recipe, and shares its trials
    assert run(trials) == 0
    assert names == []
    results = sweep.results(chosen, (1, 2), tmp_path)
    assert {name: len(entries) for name, entries in results.items()} == dict.fromkeys([a.name for a in chosen], 2)
    first = results["main/recipe"][0]
    assert [epoch["phase"] for epoch in first["epochs"]] == ["grpo", "grpo"]
    assert "actor/pg_loss" in first["epochs"][1]
    difference = report.paired_over_seeds(results, "from supervised/GRPO", "main/recipe")
    by_hand = [
        np.mean(list(a["test"].values())) - np.mean(list(b["test"].values()))
        for a, b in zip(results["from supervised/GRPO"], results["main/recipe"], strict=True)
    ]
    assert difference == pytest.approx(report.mean_interval(by_hand))
    rows = report.summary(results, "main/recipe")
    table = report.markdown(rows, {"nearest": dict.fromkeys("1234", 0.5)}, "main/recipe")
    assert "| nearest |  | 50.0 | 50.0 | 50.0 | 50.0 | 50.0 |" in table
    assert json.loads(report.compact_json({"arms": rows, "nearest": {"1": 0.5}, "n": 3}))["arms"][0]["seeds"] == [1, 2]
    report.figure(results, {"nearest": {"1": 0.5, "2": 0.5}}, "main/recipe", tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size > 10_000


def test_a_trial_is_known_by_what_decides_its_result(recipe):
    def digest(values, seed=1):
        return sweep.trial(sweep.Arm("x", changed(recipe, values)), seed).digest

    def warm_up(values):
        return sweep.trial(sweep.Arm("x", changed(recipe, values)), 1).before.digest

    assert digest({}) == digest({"trainer.experiment_name": "x", "trainer.device": "cpu", "trainer.threads": 4})
    assert len({digest({}), digest({"grpo.lr": 1e-9}), digest({}, seed=9), digest({"data.train_queries": 7})}) == 4
    assert warm_up({}) == warm_up({"grpo.lr": 1e-9}) == digest({"grpo.epochs": 0, "grpo.lr": 3e-9})
    assert warm_up({"rce.lr": 1e-9}) != warm_up({})
    assert digest({"rce.epochs": 0}) == digest({"rce.epochs": 0, "rce.lr": 1e-9})
    started = sweep.arms(recipe, "from supervised/GRPO|main/GRPO alone")
    assert sweep.trial(started[0], 1).digest != sweep.trial(started[1], 1).digest


def test_arms_by_pattern(recipe):
    with pytest.raises(RecipeError, match="no arm fits"):
        sweep.arms(recipe, "nothing/*")
    assert {arm.name.split("/")[0] for arm in sweep.arms(recipe, "main/*|layers/*")} == {"main", "layers"}


def test_the_evaluation_of_a_run(recipe, tmp_path):
    one = sweep.trial(sweep.Arm("x", recipe), 1)
    sweep.run(one.before, tmp_path)
    measured = sweep.run(one, tmp_path)
    folder = tmp_path / one.digest
    evaluation = evaluate(recipe, folder, [tmp_path / one.before.digest], "test")
    assert set(evaluation.results) >= {"random", "no examples", "nearest", "mmr", "oracle", "selector", "its warm-up"}
    accuracy = {str(s): r.correct.mean() for s, r in evaluation.results["selector"].items()}
    assert accuracy == pytest.approx(measured["test"])
    for shots, oracle in evaluation.results["oracle"].items():
        assert (oracle.correct >= evaluation.results["selector"][shots].correct).all()
    pairs = {(c.a, c.b) for c in evaluation.comparisons}
    assert {("selector", b) for b in ("nearest", "mmr", "its warm-up")} | {("its warm-up", "nearest")} <= pairs
    assert json.loads(json.dumps(evaluation.as_dict()))["trained_for"] == 4
    with pytest.raises(RecipeError, match="no part 'dev'"):
        evaluate(recipe, folder, [], "dev")


def test_without_a_model_the_most_likely_logged_candidate_counts(data):
    policy = make_policy().float()
    results = measure(policy, data, None, [2, 3])
    assert list(results) == [2]  # nothing is logged for 3
    total = logged_log_probs(policy, data, 3).sum(-1).numpy()
    for query, correct in zip(results[2].queries, results[2].correct, strict=True):
        rows = np.flatnonzero((data.candidate_query == query) & (data.lengths == 2))
        assert correct == data.scores["vqa_correct"][rows[total[rows].argmax()]]


@pytest.mark.parametrize(("metric", "number"), [("accuracy", "vqa_correct"), ("probability", "vqa_gt_prob")])
def test_a_missing_number_is_named_only_where_it_counts(data, metric, number):
    data.scores[number][data.candidate_query == 5] = np.nan
    other = {"accuracy": "probability", "probability": "accuracy"}[metric]

    def validate(metric):
        recipe = changed(PointerRecipe(), {"validation.metric": metric, "data.shot_num": 2})
        return Validator(recipe, data, data, None)(make_policy().float())

    with pytest.raises(RecipeError, match=f"query '5' has a candidate without {number}"):
        validate(metric)
    assert 0 < validate(other)[1] < 1
