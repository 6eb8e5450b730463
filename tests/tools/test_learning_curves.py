"""Learning curves: seeds, paired comparisons and the drawing."""

import json

import pytest
from scipy.stats import t

from tools.learning_curves import draw, learning


def write_run(folder, validations, steps):
    """Runs whose questions have one prompt and one gold answer, as images have: their rows' ids alone differ."""
    (folder / "validation").mkdir(parents=True)
    for step, answers in validations.items():
        same = {"input": "<image>", "output": "1", "gts": "1", "score": 0.1, "step": step}
        rows = [{"acc": acc, "uid": f"{step}u{n}_0_0", "row_id": f"r{n}"} for n, acc in enumerate(answers)]
        text = "".join(json.dumps(same | row) + "\n" for row in rows)
        (folder / "validation" / f"{step}.jsonl").write_text(text)
    lines = [json.dumps({"step": step, "data": data}) for step, data in steps]
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    return folder


def test_several_seeds(tmp_path):
    training = [(1, {"critic/score/mean": 0.3, "actor/reward_kl_penalty": 0.01})]
    tens = {right: [1.0] * right + [0.0] * (10 - right) for right in (2, 6, 7, 8)}
    validations = {last: {0: tens[2], 10: [1.0], 20: tens[last]} for last in (6, 7, 8)}
    result = learning([write_run(tmp_path / str(last), each, training) for last, each in validations.items()])
    paired = result.curves[0].paired
    assert (paired.questions, paired.won, paired.lost) == (10, 4, 0)
    half = t.ppf(0.975, 2) * 0.1 / 3**0.5
    assert (result.mean[20].value, result.mean[20].low) == pytest.approx((0.7, 0.7 - half))
    assert (result.change.value, result.change.high) == pytest.approx((0.5, 0.5 + half))
    draw(result, tmp_path / "curve.svg")
    assert "</svg>" in (tmp_path / "curve.svg").read_text()
