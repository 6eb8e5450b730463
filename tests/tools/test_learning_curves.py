"""Learning curves: intervals and paired comparisons against numbers computed by hand."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from scipy.stats import t

from recipes.statistics import Interval
from tools.learning_curves import draw, learning, pass_at_k


def write_run(folder, validations, steps=(), shift=0):
    """Runs whose questions have one prompt and one gold answer, as images have: their rows' ids alone differ."""
    (folder / "validation").mkdir(parents=True)
    for step, answers in validations.items():
        same = {"input": "<image>", "output": "1", "gts": "1", "score": 0.1, "step": step}
        lines = [
            json.dumps(same | {"acc": acc, "uid": f"{step}u{index}_0_0", "row_id": f"r{index + shift}"})
            for index, acc in enumerate(answers)
        ]
        (folder / "validation" / f"{step}.jsonl").write_text("\n".join(lines) + "\n")
    lines = [json.dumps({"step": step, "data": data}) for step, data in steps]
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    return folder


def test_one_run(tmp_path):
    before, after = [1.0] * 20 + [0.0] * 80, [1.0] * 15 + [0.0] * 5 + [1.0] * 35 + [0.0] * 45
    result = learning([write_run(tmp_path / "run", {0: before, 40: after})])
    (curve,) = result.curves
    assert {step: interval.value for step, interval in curve.validation.items()} == {0: 0.20, 40: 0.50}
    assert (curve.paired.first, curve.paired.last, curve.paired.questions) == (0, 40, 100)
    assert curve.paired.difference.value == pytest.approx(0.30)
    assert 0.15 < curve.paired.difference.low < 0.30 < curve.paired.difference.high < 0.45
    assert (curve.paired.mcnemar.won, curve.paired.mcnemar.lost) == (35, 5)
    assert result.change.low is None, "one seed has no interval over seeds"


def test_several_seeds(tmp_path):
    training = [(1, {"critic/score/mean": 0.3, "actor/reward_kl_penalty": 0.01})]
    tens = {right: [1.0] * right + [0.0] * (10 - right) for right in (2, 6, 7, 8)}
    result = learning(
        [write_run(tmp_path / str(last), {0: tens[2], 10: [1.0], 20: tens[last]}, training) for last in (6, 7, 8)]
    )
    half = t.ppf(0.975, 2) * 0.1 / 3**0.5
    assert (result.mean[20].value, result.mean[20].low) == pytest.approx((0.7, 0.7 - half))
    assert (result.change.value, result.change.high) == pytest.approx((0.5, 0.5 + half))
    assert result.mean[0].low is None
    draw(result, tmp_path / "curve.svg")
    assert "</svg>" in (tmp_path / "curve.svg").read_text()


def test_pass_at_k_is_read_from_a_comparisons_report(tmp_path):
    figures = {name: asdict(Interval(0.5, 0.4, 0.6, "any")) for name in ("mean_score", "pass@1", "pass@16")}
    models = {label: {"passes": {"sampled": {"figures": figures}}} for label in ("base", "trained")}
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"models": models, "comparison": {"differences": {"sampled": figures}}}))
    assert {k: each["after"].value for k, each in pass_at_k([report]).items()} == {1: 0.5, 16: 0.5}
