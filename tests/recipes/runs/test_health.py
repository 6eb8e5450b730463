"""Health rules: silent on recorded healthy runs, and each speaks up for the illness that it is there for."""

from __future__ import annotations

import json
import math

import pytest

from recipes.config import load
from recipes.paths import ROOT
from recipes.runs.health import Evidence, findings
from recipes.runs.metrics import Step
from recipes.runs.responses import Groups
from tools.learning_curves import TRAINING

LIMIT = load("countdown", environ={}, hardware="cpu").data.max_response_length


def recipe(*arguments):
    return load("countdown", arguments=arguments, environ={}, hardware="cpu")


def judged(history, *arguments, **facts):
    """Rule -> its finding."""
    return {finding.rule.name: finding for finding in findings(Evidence(history, recipe(*arguments), **facts))}


def healthy_step(number, **changes):
    wobble = 1 + 0.1 * math.sin(number)
    data = {
        "critic/score/mean": 0.3 + 0.01 * number,
        "critic/advantages/max": 1.5,
        "critic/advantages/min": -1.5,
        "actor/entropy": 0.25 * wobble,
        "actor/reward_kl_penalty": 0.002 * number,
        "actor/grad_norm": 0.12 * wobble,
        "actor/pg_clipfrac": 0.0,
        "response_length/mean": 20 * wobble,
        "response_length/max": LIMIT,
        "response_length/clip_ratio": 0.02,
        "rollout_corr/kl": 1e-4 * wobble,
        "timing_s/step": 20 * wobble,
        "timing_s/gen": 12 * wobble,
        "timing_s/update_actor": 8 * wobble,
    }
    if number % 5 == 0:
        data["val-core/countdown/acc/mean@1"] = 0.2 + 0.008 * number
    return Step(number, data | changes)


def run(ill=None, steps=20, begins=10):
    """A healthy run that `ill(step)` changes from step `begins` on."""
    return [healthy_step(number, **(ill(number) if ill and number >= begins else {})) for number in range(1, steps + 1)]


def alarms(found):
    return {name: finding.status for name, finding in found.items() if finding.alarming}


def test_a_healthy_runs_zeros_are_explained():
    found = judged(run())
    assert found["clipping"].status == "explained"
    assert "by design" in found["KL"].evidence


@pytest.mark.parametrize("task", ["countdown", "gsm8k"])
def test_the_recorded_runs_of_the_documents_raise_no_false_alarm(task):
    """60 and 40 steps of training that learned, three seeds each, judged after every step."""
    for curve in json.loads((ROOT / "docs" / "results" / f"{task}_tiny_cpu.json").read_text())["curves"]:
        accuracy = {int(step): interval["value"] for step, interval in curve["validation"].items()}
        history = [Step(0, {"val-core/x/acc/mean@1": accuracy[0]})]
        for entry in curve["training"]:
            data = {metric: entry[name] for name, metric in TRAINING.items() if name in entry}
            if entry["step"] in accuracy:
                data["val-core/x/acc/mean@1"] = accuracy[entry["step"]]
            history.append(Step(entry["step"], data))
            # Other programs slowed the machine down in two of these runs, and that is said.
            measured = {
                at: Groups(256, 0, 0, value, error=0.03) for at, value in accuracy.items() if at <= entry["step"]
            }
            assert alarms(judged(history, validations=measured)).keys() <= {"step time"}, curve["run"]


ILLNESSES = {
    "collapse": (lambda step: {"actor/entropy": 0.001}, "entropy", "failure"),
    "runs away": (lambda step: {"actor/reward_kl_penalty": 0.01 * 2 ** (step - 10)}, "KL", "warning"),
    "coefficient forgotten": (lambda step: {}, "KL", "warning"),
    "no gradient": (lambda step: {"actor/grad_norm": 0.0}, "grad-norm", "failure"),
    "overflow": (lambda step: {"actor/pg_loss": None}, "numbers", "failure"),
    "constant reward": (lambda step: {"critic/advantages/max": 0.0, "critic/advantages/min": 0.0}, "groups", "failure"),
    "stale responses": (lambda step: {"actor/pg_clipfrac": 0.6}, "clipping", "warning"),
    "never ends": (lambda step: {"response_length/clip_ratio": 0.9}, "truncation", "warning"),
    "longer and longer": (lambda step: {"response_length/mean": 90}, "length", "warning"),
    "blind": (lambda step: {"rollout_corr/kl": 1.3}, "vLLM and trainer", "failure"),
    "slower": (lambda step: {"timing_s/step": 60.0, "timing_s/gen": 50.0}, "step time", "warning"),
}


@pytest.mark.parametrize("illness", ILLNESSES)
def test_each_illness_is_named(illness):
    ill, rule, status = ILLNESSES[illness]
    found = judged(run(ill), *(["algorithm.kl_coef=0"] if illness == "coefficient forgotten" else []))
    assert found[rule].status == status, found[rule]
    assert alarms(found).keys() <= {rule, "numbers"}


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
def test_a_score_that_rises_alone_is_named_where_the_validation_can_tell(values, error, status):
    measured = {10 * index: Groups(8, 0, 0, value, error=error) for index, value in enumerate(values)}
    history = [Step(step, {"critic/score/mean": 0.3 + 0.025 * step}) for step in range(21)]
    assert judged(history, validations=measured)["reward and validation"].status == status


def test_responses_as_long_as_the_batchs_longest_are_no_truncated_ones():
    """verl's clip_ratio counts them; only where the longest reaches the limit were they cut."""
    for longest, status in ((LIMIT - 1, "ok"), (LIMIT, "warning")):
        lengths = {"response_length/max": longest, "response_length/clip_ratio": 0.9}
        assert judged(run(lambda step, lengths=lengths: lengths))["truncation"].status == status


def test_a_solved_task_is_no_failure():
    solved = {step: Groups(8, 8, 8, 1.0) for step in range(10, 20)}
    found = judged(run(lambda step: {"actor/grad_norm": 0.0}), groups=solved)
    assert {found[name].status for name in ("groups", "grad-norm")} == {"explained"}
    assert "solved" in found["groups"].evidence
    wrong = {step: Groups(8, 8, 7, 0.9) for step in range(10, 20)}
    found = judged(run(lambda step: {"actor/grad_norm": 0.0}), groups=wrong)
    assert {found[name].status for name in ("groups", "grad-norm")} == {"failure"}


@pytest.mark.parametrize(
    ("key", "zero_variance", "status"),
    [("monitor.window=5", 8, "failure"), ("monitor.zero_variance_groups=0.9", 7, "ok")],
)
def test_groups_are_judged_by_their_responses_and_bounds_come_from_the_recipe(key, zero_variance, status):
    groups = {step: Groups(8, zero_variance, 0, 0.2) for step in range(10, 20)}
    assert judged(run(), key, groups=groups)["groups"].status == status
