"""Completion logs from dumps that verl writes."""

from __future__ import annotations

import json

import pytest

from recipes.errors import RecipeError
from recipes.evaluation.completions import split_rollouts
from recipes.evaluation.scoring import Reward


def record(prompt, answer, score, gold="4", thought="adding the two numbers gives their sum", **more):
    text = f"<think>{thought}</think><answer>{answer}</answer>"
    return {"input": prompt, "output": text, "gts": gold, "score": score, "step": 1} | more


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def run(tmp_path):
    """A run with two steps; in the second, groups are out of order as batch balancing leaves them."""
    return dump(
        tmp_path / "rollouts",
        {
            10: [
                record("q", "4", 1.0, uid="a_0_0"),
                record("q", "5", 0.1, uid="a_1_0"),
                record("q", "4", 1.0, uid="b_0_0"),
            ],
            2: [record("x", "4", 1.0), record("y", "9", 0.1), record("x", "3", 0.1), record("y", "4", 1.0)],
        },
    )


def dump(folder, steps):
    folder.mkdir()
    for step, records in steps.items():
        (folder / f"{step}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    return folder


def test_success_and_fail_hold_every_response_once(run, tmp_path, reward_path):
    steps = split_rollouts(run, tmp_path / "out", Reward(str(reward_path)), "sums")
    counts = [(step.step, step.counts.success, step.counts.fail, step.differs) for step in steps]
    assert counts == [("2", 2, 2, 0), ("10", 2, 1, 0)], "steps by number"
    assert steps[0].mean_score == pytest.approx(0.55)
    good, bad = (lines(tmp_path / "out" / f"step_2_{kind}.jsonl") for kind in ("success", "fail"))
    assert [entry["prompt"] for entry in good] == ["x", "y"], "by group"
    assert {entry["reason"] for entry in good} == {"correct"}
    assert {entry["reason"] for entry in bad} == {"wrong_answer"}
    assert (good[0]["ground_truth"], good[0]["response"][:7]) == ("4", "<think>")
    reward_path.write_text(reward_path.read_text().replace("0.1 * tagged", "0.2 * tagged"))
    steps = split_rollouts(run, tmp_path / "out", Reward(str(reward_path)), "sums")
    assert [step.differs for step in steps] == [2, 1], "another reward file than training's"


def test_without_a_reward_file_the_logged_values_stand(tmp_path):
    records = [record(f"q{n}", "same", 0.1, gold=str(n), reason="wrong_value", accuracy=0.0) for n in range(9)]
    run = dump(tmp_path / "validation", {0: [*records, record("p", "same", 1.0, thought="")]})
    (step,) = split_rollouts(run, tmp_path / "out", None, "sums")
    assert lines(tmp_path / "out" / "step_0_fail.jsonl")[0]["reason"] == "wrong_value", "validation dumps have it"
    assert lines(tmp_path / "out" / "step_0_success.jsonl")[0]["reason"] == "right"
    assert step.counts.flags["right without reasoning"] == 1
    (line,) = lines(tmp_path / "out" / "step_0_suspicious.jsonl")
    assert line["suspicious"] == ["right without reasoning"]
    assert step.counts.same_answer[0]["answer"] == "same"


@pytest.mark.parametrize(
    ("content", "mistake"),
    [
        ('{"input": "q", "out', "not JSON"),
        ('{"input": "q", "output": "a", "gts": "4", "score": NaN, "step": 1}', "logged score is nan"),
    ],
)
def test_a_broken_dump_is_named_and_leaves_an_earlier_log_as_it_was(run, tmp_path, content, mistake):
    split_rollouts(run, tmp_path / "out", None, "sums")
    before = sorted(tmp_path.rglob("*"))
    (run / "3.jsonl").write_text(content)
    with pytest.raises(RecipeError, match=mistake) as error:
        split_rollouts(run, tmp_path / "out", None, "sums")
    assert "3.jsonl" in error.value.where
    assert sorted(tmp_path.rglob("*")) == sorted([*before, run / "3.jsonl"])
