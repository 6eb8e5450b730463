"""Statistics against known values, baselines on logged candidates, and the whole evaluation of a small run."""

from __future__ import annotations

import numpy as np
import pytest
from pointer_testing import SMALL_WORKLOAD, write_data
from scipy import stats

from recipes.errors import RecipeError
from recipes.pointer_selector import sweep, sweep_report, trials
from recipes.pointer_selector.arms import arms
from recipes.pointer_selector.config import PointerRecipe
from recipes.pointer_selector.data import read_data
from recipes.pointer_selector.evaluation import Result, baseline_results, compare, evaluate
from recipes.pointer_selector.resolve import changed
from recipes.pointer_selector.statistics import cluster_bootstrap, mean_interval, paired
from recipes.statistics import holm

RNG = np.random.default_rng(0)


def test_paired_counts_and_mcnemar():
    a = np.array([1] * 12 + [0] * 3 + [1] * 20 + [0] * 5, float)
    b = np.array([0] * 12 + [1] * 3 + [1] * 20 + [0] * 5, float)
    found = paired(a, b, np.arange(40))
    assert (found.a_only, found.b_only) == (12, 3)
    assert found.difference == pytest.approx(9 / 40)
    assert found.p_value == pytest.approx(2 * stats.binom.cdf(3, 15, 0.5))
    assert found.low < found.difference < found.high
    same = paired(a, a, np.arange(40))
    assert (same.p_value, same.low, same.high) == (1.0, 0.0, 0.0)


def test_the_bootstrap_has_the_width_of_the_standard_error():
    values = RNG.normal(size=400)
    low, high = cluster_bootstrap(values, np.arange(400), draws=4000, seed=0)
    assert (high - low) / 2 == pytest.approx(1.96 * values.std() / np.sqrt(400), rel=0.06)
    repeated = np.repeat(values, 4)
    clustered = cluster_bootstrap(repeated, np.repeat(np.arange(400), 4), draws=4000, seed=0)
    assert clustered == pytest.approx((low, high))  # four copies of a query are worth one
    naive = cluster_bootstrap(repeated, np.arange(1600), draws=4000, seed=0)
    assert naive[1] - naive[0] < 0.6 * (high - low)


def test_holm_and_the_interval_over_seeds():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.5]) == [1.0, 1.0]
    values = [0.7, 0.74, 0.71, 0.69]
    mean, half = mean_interval(values)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (mean - half, mean + half) == pytest.approx((low, high))
    assert mean_interval([0.5]) == (0.5, None)


def test_comparisons_are_adjusted_over_the_whole_table():
    results = {
        name: {s: Result((RNG.random(50) < p).astype(float), np.zeros(50)) for s in (1, 2)}
        for name, p in {"a": 0.9, "b": 0.4}.items()
    }
    found = compare(results, [("a", "b")], np.arange(50))
    assert [c.shots for c in found] == [1, 2]
    assert [c.p_holm for c in found] == pytest.approx(holm([c.test.p_value for c in found]))
    assert found[0].as_dict()["difference"] == found[0].test.difference


def test_baselines_of_logged_candidates(tmp_path):
    path, table = write_data(tmp_path)
    data = read_data(path, table, table)
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
    chosen = [arm for arm in arms(recipe) if arm.name in ("main/RCE", "main/RCE + GRPO", "ratio/step")]
    named = [(arm.name, sweep.of_seed(arm.recipe, seed)) for arm in chosen for seed in (1, 2)]
    study, told = sweep.open_study(tmp_path), []

    def run(recipes, seconds=float("inf")):
        told.clear()
        workers = sweep.Workers(0, 0, seconds)
        return sweep.sweep(study, recipes, tmp_path / "c", workers, lambda *args: told.append(args[0]))

    assert run(named, seconds=0) == 4
    assert told == []
    assert run(named[:2]) == 0
    assert told == ["main/RCE", "main/RCE"]
    assert run(named) == 0
    assert told == ["main/RCE + GRPO", "main/RCE + GRPO"]  # the other arms come to the same here
    assert run(named) == 0
    assert told == []
    again = sweep.open_study(tmp_path)  # read back from disk
    found = sweep.of_arms(again, chosen, {arm.name: [1, 2] for arm in chosen})
    assert {name: len(entries) for name, entries in found.items()} == dict.fromkeys([arm.name for arm in chosen], 2)
    rows = sweep_report.summary(found)
    pair = sweep_report.paired_over_seeds(found, "main/RCE + GRPO", "main/RCE")
    expected = [
        np.mean(list(b["test"].values())) - np.mean(list(a["test"].values()))
        for a, b in zip(found["main/RCE"], found["main/RCE + GRPO"], strict=True)
    ]
    assert pair["mean"] == pytest.approx(mean_interval(expected))
    text = sweep_report.markdown(rows, {"nearest": {"1": 0.5, "2": 0.5, "3": 0.5, "4": 0.5}}, [pair])
    assert "| nearest |  | 50.0 | 50.0 | 50.0 | 50.0 | 50.0 |" in text
    assert text.count("| main/RCE + GRPO |") == 2
    sweep_report.figure(found, {"nearest": {"1": 0.5, "2": 0.5}}, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size > 10_000


def test_changed_settings_are_other_trials(recipe):
    base = trials.digest(recipe)
    assert trials.digest(changed(recipe, {"trainer.experiment_name": "x", "trainer.device": "cpu"})) == base
    assert trials.digest(changed(recipe, {"grpo.lr": 1e-9})) != base
    assert trials.digest(sweep.of_seed(recipe, 9)) != base
    warm_ups = {
        trials.digest(trials.warm_up_of(changed(recipe, v))) for v in ({}, {"grpo.lr": 1e-9}, {"grpo.kl.beta": 0.3})
    }
    assert warm_ups == {trials.digest(changed(recipe, {"grpo.epochs": 0, "grpo.lr": 1e-9}))}  # RCE alone is a warm-up
    assert trials.digest(trials.warm_up_of(changed(recipe, {"rce.lr": 1e-9}))) not in warm_ups


def test_an_arm_that_does_not_exist(recipe):
    with pytest.raises(RecipeError, match="no arm fits"):
        arms(recipe, "nothing/*")
    assert {arm.factor for arm in arms(recipe, "main/*|layers/*")} == {"main", "layers"}
    names = [arm.name for arm in arms(recipe)]
    assert len(names) == len(set(names)) > 40


def test_the_evaluation_of_a_run(recipe, tmp_path):
    task = trials.Task(recipe.model_dump(), str(tmp_path / "run"))
    measured = trials.run(task)
    found = evaluate(recipe, tmp_path / "run", [tmp_path / "run" / measured_folder(tmp_path)], "test")
    assert set(found.results) >= {"random", "no examples", "nearest", "mmr", "oracle", "selector", "its warm-up"}
    assert {str(s): r.correct.mean() for s, r in found.results["selector"].items()} == pytest.approx(measured["test"])
    for shots, oracle in found.results["oracle"].items():
        assert (oracle.correct >= found.results["selector"][shots].correct).all()
    pairs = {(c.a, c.b) for c in found.comparisons}
    assert {
        ("selector", "nearest"),
        ("selector", "mmr"),
        ("selector", "its warm-up"),
        ("its warm-up", "nearest"),
    } <= pairs
    assert found.as_dict()["trained_for"] == 4
    with pytest.raises(RecipeError, match="no part 'dev'"):
        evaluate(recipe, tmp_path / "run", [], "dev")


def measured_folder(tmp_path):
    return sorted(path.name for path in (tmp_path / "run").glob("global_step_*"))[-1]
