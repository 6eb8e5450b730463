"""Completion logs from dumps that verl writes."""

from __future__ import annotations

import json

import pytest

from recipes.errors import RecipeError
from recipes.evaluation.completions import split_rollouts
from recipes.evaluation.scoring import Reward


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def run(tmp_path):
    """A run with two steps; in the second, groups are out of order as batch balancing leaves them."""
    steps = {
        10: [("q", "4", 1.0, "a_0_0"), ("q", "5", 0.1, "a_1_0"), ("q", "4", 1.0, "b_0_0")],
        2: [("x", "4", 1.0, "a_0_0"), ("y", "9", 0.1, "b_0_0"), ("x", "3", 0.1, "a_1_0"), ("y", "4", 1.0, "b_1_0")],
    }
    folder = tmp_path / "rollouts"
    folder.mkdir()
    for step, responses in steps.items():
        with (folder / f"{step}.jsonl").open("w") as file:
            for prompt, answer, score, uid in responses:
                record = {"input": prompt, "output": f"<think>a sum</think><answer>{answer}</answer>", "gts": "4"}
                record |= {"score": score, "step": step} | {"uid": uid}
                file.write(json.dumps(record) + "\n")
    return folder


def test_success_and_fail_hold_every_response_once(run, tmp_path, reward_path):
    steps = split_rollouts(run, tmp_path / "out", Reward(str(reward_path)), "sums")
    counts = [(step.step, step.counts["success"], step.counts["fail"], step.differs) for step in steps]
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


@pytest.mark.parametrize(
    ("content", "mistake"),
    [
        ('{"input": "q", "out\n{}', "not JSON"),
        ('{"input": "q", "out', "the dump is empty"),
        ('{"input": "q", "output": "a", "gts": "4", "score": NaN, "step": 1}', "nan"),
    ],
)
def test_a_broken_dump_is_named_and_leaves_an_earlier_log_as_it_was(run, tmp_path, content, mistake):
    split_rollouts(run, tmp_path / "out", None, "sums")
    before = sorted(tmp_path.rglob("*"))
    (run / "3.jsonl").write_text(content)
    with pytest.raises(RecipeError, match=mistake) as error:
        split_rollouts(run, tmp_path / "out", None, "sums")
    assert "3.jsonl" in (error.value.where or "")
    assert sorted(tmp_path.rglob("*")) == sorted([*before, run / "3.jsonl"])
