"""Health rules: silent on recorded healthy runs, and each speaks up for the illness that it is there for."""

import json
import math
import time

import pytest

from recipes.config import load
from recipes.paths import ROOT
from recipes.rewards.metrics import TRAINING_ACCURACY, ZERO_VARIANCE
from recipes.runs.health import MOST_ROLLOUT_KL, ROLLOUT_KL, Evidence, Health, findings, mismatch, mismatch_bound
from recipes.runs.metrics import Measured, Step, read_history
from recipes.runs.report import MOST_POINTS, thinned
from tools.learning_curves import TRAINING

LIMIT = load("countdown", environ={}, hardware="cpu").data.max_response_length


def judged(history, *arguments, validations=()):
    """Rule -> its finding."""
    recipe = load("countdown", arguments=arguments, environ={}, hardware="cpu")
    return {finding.rule.name: finding for finding in findings(Evidence(history, recipe, dict(validations)))}


def healthy_step(number, **changes):
    wobble = 1 + 0.1 * math.sin(number)
    data = {
        "critic/score/mean": 0.3 + 0.01 * number,
        ZERO_VARIANCE: 0.4 * wobble,
        TRAINING_ACCURACY: 0.3,
        "actor/entropy": 0.25 * wobble,
        "actor/reward_kl_penalty": 0.002 * number,
        "actor/grad_norm": 0.12 * wobble,
        "response_length/max": LIMIT,
        "response_length/clip_ratio": 0.02,
        "rollout_corr/kl": 1e-4 * wobble,
        "timing_s/step": 20 * wobble,
    }
    return Step(number, data | changes)


def run(ill=None, steps=20, begins=10):
    """A healthy run that `ill(step)` changes from step `begins` on."""
    return [healthy_step(number, **(ill(number) if ill and number >= begins else {})) for number in range(1, steps + 1)]


def alarms(found):
    return {name: finding.status for name, finding in found.items() if finding.alarming}


@pytest.mark.parametrize("task", ["countdown", "gsm8k"])
def test_the_recorded_runs_of_the_documents_raise_no_false_alarm(task):
    """60 and 40 steps of training that learned, three seeds each, judged after every step."""
    for curve in json.loads((ROOT / "docs" / "results" / f"{task}_tiny_cpu.json").read_text())["curves"]:
        accuracy = {int(step): interval["value"] for step, interval in curve["validation"].items()}
        history = [Step(0, {"val-core/x/acc/mean@1": accuracy[0]})]
        for entry in curve["training"]:
            step, metrics = entry["step"], {TRAINING[name]: entry[name] for name in TRAINING.keys() & entry.keys()}
            history.append(Step(step, metrics | {"critic/score/max": 1.0, "critic/score/min": 0.0}))
            measured = {at: Measured("accuracy", value, 0.03, 256, 256) for at, value in accuracy.items() if at <= step}
            assert not alarms(judged(history, validations=measured)), curve["run"]


ILLNESSES = {
    "none": (lambda step: {}, "KL", "ok"),
    "collapse": (lambda step: {"actor/entropy": 0.001}, "entropy", "failure"),
    "noise": (lambda step: {"actor/entropy": 1.97}, "entropy", "warning"),
    "runs away": (lambda step: {"actor/reward_kl_penalty": 0.01 * 2 ** (step - 10)}, "KL", "warning"),
    "coefficient forgotten": (lambda step: {}, "KL", "warning"),
    "no gradient": (lambda step: {"actor/grad_norm": 0.0}, "grad-norm", "failure"),
    "overflow": (lambda step: {"actor/pg_loss": None}, "numbers", "failure"),
    "overflow of old": (lambda step: {"actor/pg_loss": None} if step < 16 else {}, "numbers", "warning"),
    "constant reward": (lambda step: {ZERO_VARIANCE: 1.0}, "groups", "failure"),
    "nearly constant reward": (lambda step: {ZERO_VARIANCE: 0.9}, "groups", "warning"),
    "never ends": (lambda step: {"response_length/clip_ratio": 0.9}, "truncation", "warning"),
    # verl counts what is as long as the longest; only where that reaches the limit was it cut.
    "alike": (lambda step: {"response_length/clip_ratio": 0.9, "response_length/max": LIMIT - 1}, "truncation", "ok"),
    "blind": (lambda step: {"rollout_corr/kl": 1.3}, "vLLM and trainer", "failure"),
}


@pytest.mark.parametrize("illness", ILLNESSES)
def test_each_illness_is_named(illness):
    ill, rule, status = ILLNESSES[illness]
    found = judged(run(ill), *(["algorithm.kl_coef=0"] if illness == "coefficient forgotten" else []))
    assert found[rule].status == status, found[rule]
    assert alarms(found).keys() <= {rule}


@pytest.mark.parametrize(
    ("values", "error", "status"),
    [
        ((0.40, 0.41), 0.03, "warning"),  # the score rises by half, and nothing else does
        ((0.40, 0.60, 0.30), 0.03, "warning"),  # helped at first
        ((0.40, 0.85), 0.03, "ok"),
        ((0.40, 0.30), 0.14, "ok"),  # 13 questions: a fall of one or two is noise
        ((0.40,), 0.03, "unknown"),
        ((0.0, 0.0), 0.0, "unknown"),  # every question has the same value
    ],
)
@pytest.mark.parametrize(("wrong", "right"), [(0.0, 1.0), (0.0, 100.0), (-1.0, 1.0), (0.0, 0.01), (5.0, 25.0)])
@pytest.mark.parametrize("measure", ["accuracy", "score"])
def test_a_score_that_rises_alone_is_named_where_the_validation_can_tell(values, error, status, wrong, right, measure):
    """On any scale of the reward: `wrong` and `right` are what it pays."""
    base, scale = (wrong, right - wrong) if measure == "score" else (0.0, 1.0)
    measured = {
        10 * index: Measured(measure, base + scale * value, scale * error, 8, 8) for index, value in enumerate(values)
    }
    ends = {"critic/score/max": right, "critic/score/min": wrong}
    means = [wrong + (right - wrong) * (0.3 + 0.025 * step) for step in range(21)]
    history = [Step(step, {"critic/score/mean": mean} | ends) for step, mean in enumerate(means)]
    assert judged(history, validations=measured)["reward and validation"].status == status


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ([0.1, 0.51, 1.07, 2.84, 5.17, *[5.6] * 9], "failure"),  # noise, which rose in the first steps
        ([0.1, 0.51, 0.8, *[0.9] * 9], "warning"),
        ([0.9, *[2.9] * 9], "warning"),
        ([2.2] * 9, "ok"),
        ([0.3, 0.2, 0.25, *[0.4] * 9], "ok"),
    ],
)
def test_entropy_is_judged_by_the_steps_before_its_rise_and_by_a_bound(values, status):
    history = [healthy_step(step, **{"actor/entropy": value}) for step, value in enumerate(values, 1)]
    assert judged(history)["entropy"].status == status


@pytest.mark.parametrize(("change", "cause"), [(-0.01, "LR too high"), (0.01, "reward hacking")])
def test_the_cause_fits_what_fell(change, cause):
    ends = {"critic/score/max": 1.0, "critic/score/min": 0.0}
    history = [Step(step, {"critic/score/mean": 0.4 + change * step} | ends) for step in range(21)]
    validations = {0: Measured("accuracy", 0.207, 0.01, 256, 256), 20: Measured("accuracy", 0.09, 0.01, 256, 256)}
    found = judged(history, validations=validations)["reward and validation"]
    assert (found.status, cause in found.line()) == ("warning", True)
    assert "held-out accuracy fell by 12 points" in found.evidence


def test_the_tiny_model_that_stands_in_for_another_is_not_judged(tmp_path):
    rows, lines = tmp_path / "mine.parquet", []
    rows.touch()
    recipe = load("countdown", arguments=[f"data.train_files={rows}"], environ={}, hardware="cpu")
    health = Health(recipe, [], tmp_path, lines.append)
    for step in run(lambda step: {"actor/entropy": 6.0, ZERO_VARIANCE: 1.0, "actor/pg_loss": None if step > 15 else 0}):
        health.add_step(step)
    assert "its scores say nothing about the task" in lines.pop(0)
    assert {line.split(":")[1] for line in lines} == {" numbers"}
    assert {each.status for each in findings(health._run) if each.rule.name != "numbers"} == {"unknown"}


def test_a_step_costs_the_same_after_twenty_thousand(tmp_path):
    recipe = load("countdown", environ={}, hardware="cpu")
    health = Health(recipe, run(steps=20_000), tmp_path, print)
    health._run.validations = {40 * step: Measured("accuracy", 0.3, 0.02, 256, 256) for step in range(500)}
    health.add_step(healthy_step(20_001))
    begin = time.process_time()
    for step in range(20_002, 20_052):
        health.add_step(healthy_step(step))
    assert (time.process_time() - begin) / 50 < 0.02
    assert len(thinned([(step, float(step == 777)) for step in range(20_000)])) <= MOST_POINTS
    assert (777, 1.0) in thinned([(step, float(step == 777)) for step in range(20_000)])


def test_rounding_of_a_constant_score_is_no_rise():
    """float32 sums of equal parts differ in their last bits."""
    ends = {"critic/score/max": 0.5 + 6e-8, "critic/score/min": 0.5}
    history = [Step(step, {"critic/score/mean": 0.5 + 6e-8 * step / 20} | ends) for step in range(21)]
    measured = {step: Measured("accuracy", 0.4, 0.03, 256, 256) for step in (0, 20)}
    assert judged(history, validations=measured)["reward and validation"].status == "ok"


def test_a_solved_task_is_no_failure():
    for accuracy, status in ((1.0, "explained"), (0.9, "failure")):
        silent = {"actor/grad_norm": 0.0, ZERO_VARIANCE: 1.0, TRAINING_ACCURACY: accuracy}
        found = judged(run(lambda step, silent=silent: silent))
        assert {found[name].status for name in ("groups", "grad-norm")} == {status}


@pytest.mark.parametrize(
    ("kl", "wrong"),
    [(3.6e-3, False), (-1e-3, False), (None, False), (1.3, True), (-0.3, True), (math.nan, True)],
)
def test_more_than_rounding_is_a_mismatch(kl, wrong):
    assert bool(mismatch(Step(1, {ROLLOUT_KL: kl}), MOST_ROLLOUT_KL)) is wrong
    assert mismatch(Step(1, {ROLLOUT_KL: kl}), math.inf) is None


def test_the_update_measures_it_without_a_pass_before(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "data": {f"actor/{ROLLOUT_KL}": 1.3}}) + "\n")
    assert mismatch(read_history(tmp_path / "metrics.jsonl")[0], MOST_ROLLOUT_KL)


def test_runs_with_images_are_judged_by_a_bound_that_a_variable_changes():
    recipe = load("number_game", environ={"TINY": "0"}, hardware="gpu")
    assert (mismatch_bound(recipe, {}), mismatch_bound(recipe, {"MAX_ROLLOUT_KL": "0.5"})) == (MOST_ROLLOUT_KL, 0.5)
    assert math.isinf(mismatch_bound(load("countdown", environ={}, hardware="cpu"), {}))
