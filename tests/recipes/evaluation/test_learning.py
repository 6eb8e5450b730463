"""The learning curve: intervals and the paired comparison against numbers computed by hand."""

from __future__ import annotations

import json

import pytest

from recipes.errors import RecipeError
from recipes.evaluation.learning import draw, learning_curve


def write_run(folder, validations, steps=()):
    (folder / "validation").mkdir(parents=True)
    for step, answers in validations.items():
        lines = [json.dumps({"input": f"problem {index}", "acc": acc}) for index, acc in enumerate(answers)]
        (folder / "validation" / f"{step}.jsonl").write_text("\n".join(lines) + "\n")
    lines = [json.dumps({"step": step, "data": data}) for step, data in steps]
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    return folder


def test_curve_and_paired_difference(tmp_path):
    before, after = [1.0] * 20 + [0.0] * 80, [1.0] * 15 + [0.0] * 5 + [1.0] * 35 + [0.0] * 45
    training = [(1, {"critic/score/mean": 0.25}), (2, {"critic/score/mean": 0.5}), (2, {"val-core/x/acc/mean@1": 0.5})]
    curve = learning_curve(write_run(tmp_path / "run", {0: before, 40: after}, training))
    assert [entry["value"] for entry in curve["validation"]] == [0.20, 0.50]
    assert [entry["score"] for entry in curve["training"]] == [0.25, 0.5]
    paired = curve["paired"]
    assert (paired["first"], paired["last"], paired["problems"]) == (0, 40, 100)
    assert paired["difference"]["value"] == pytest.approx(0.30)
    assert 0.15 < paired["difference"]["low"] < 0.30 < paired["difference"]["high"] < 0.45
    assert (paired["mcnemar"]["won"], paired["mcnemar"]["lost"]) == (35, 5)

    draw(curve, tmp_path / "curve.svg")
    first = (tmp_path / "curve.svg").read_bytes()
    draw(curve, tmp_path / "curve.svg")
    assert first == (tmp_path / "curve.svg").read_bytes()


def test_pairs_by_prompt_not_by_position(tmp_path):
    run = write_run(tmp_path / "run", {0: [1.0, 0.0, 0.0], 5: [1.0, 0.0, 0.0]})
    lines = (run / "validation" / "5.jsonl").read_text().splitlines()
    (run / "validation" / "5.jsonl").write_text("\n".join(reversed(lines)) + "\n")
    assert learning_curve(run)["paired"]["mcnemar"] == {"won": 0, "lost": 0, "p_value": 1.0}


def test_one_validation_is_no_curve(tmp_path):
    with pytest.raises(RecipeError, match="a curve needs two"):
        learning_curve(write_run(tmp_path / "run", {0: [1.0]}))
