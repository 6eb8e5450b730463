"""Completion logs from dumps that verl writes."""

from __future__ import annotations

import json

import pytest

from recipes.errors import RecipeError
from recipes.evaluation.completions import rollout_files, split_rollouts
from recipes.evaluation.scoring import Reward

THINKING = "<think>adding the two numbers gives their sum</think>"


def dump(folder, step, records):
    folder.mkdir(exist_ok=True)
    path = folder / f"{step}.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def record(prompt, answer, score, gold="4", step=1, **more):
    return {
        "input": prompt,
        "output": f"{THINKING}<answer>{answer}</answer>",
        "gts": gold,
        "score": score,
        "step": step,
    } | more


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def run(tmp_path, reward_path):
    """A run with two steps; in the second, groups are out of order as batch balancing leaves them."""
    folder = tmp_path / "rollouts"
    dump(
        folder,
        10,
        [record("q", "4", 1.0, uid="a_0_0"), record("q", "5", 0.1, uid="a_1_0"), record("q", "4", 1.0, uid="b_0_0")],
    )
    dump(folder, 2, [record("x", "4", 1.0), record("y", "9", 0.1), record("x", "3", 0.1), record("y", "4", 1.0)])
    return folder


def test_steps_are_sorted_by_number(run):
    assert [path.name for path in rollout_files(run)] == ["2.jsonl", "10.jsonl"]


def test_success_and_fail_hold_every_response_once(run, tmp_path, reward_path):
    found = split_rollouts(run, tmp_path / "out", Reward(str(reward_path)), "sums")
    assert [(step.step, step.counts.success, step.counts.fail, step.differs) for step in found] == [
        ("2", 2, 2, 0),
        ("10", 2, 1, 0),
    ]
    assert found[0].mean_score == pytest.approx(0.55)
    good, bad = lines(tmp_path / "out" / "step_2_success.jsonl"), lines(tmp_path / "out" / "step_2_fail.jsonl")
    assert [entry["prompt"] for entry in good] == ["x", "y"]
    assert {entry["reason"] for entry in good} == {"correct"}
    assert {entry["reason"] for entry in bad} == {"wrong_answer"}
    assert good[0]["response"].startswith("<think>")
    assert good[0]["ground_truth"] == "4"


def test_a_reward_file_that_was_not_trained_with_shows(run, tmp_path, reward_path):
    reward_path.write_text(reward_path.read_text().replace("0.1 * tagged", "0.2 * tagged"))
    found = split_rollouts(run, tmp_path / "out", Reward(str(reward_path)), "sums")
    assert [step.differs for step in found] == [2, 1]


def test_without_a_reward_file_the_logged_values_stand(run, tmp_path):
    found = split_rollouts(run, tmp_path / "out", None, "sums")
    assert [(step.counts.success, step.counts.fail) for step in found] == [(2, 2), (2, 1)]
    assert lines(tmp_path / "out" / "step_2_fail.jsonl")[0]["reason"] == "wrong"


def test_validation_dumps_bring_their_own_reasons(tmp_path):
    folder = tmp_path / "validation"
    dump(folder, 0, [record("q", "5", 0.1, uid="a_0_0", reason="wrong_value", accuracy=0.0)])
    split_rollouts(folder, tmp_path / "out", None, "sums")
    assert lines(tmp_path / "out" / "step_0_fail.jsonl")[0]["reason"] == "wrong_value"


def test_suspicious_rewards_are_listed(tmp_path):
    folder = tmp_path / "rollouts"
    dump(
        folder,
        1,
        [{"input": "q", "output": "<answer>4</answer>", "gts": "4", "score": 1.0, "step": 1}, record("q", "4", 1.0)],
    )
    found = split_rollouts(folder, tmp_path / "out", None, "sums")
    assert found[0].counts.flags["right without reasoning"] == 1
    (line,) = lines(tmp_path / "out" / "step_1_suspicious.jsonl")
    assert line["suspicious"] == ["right without reasoning"]


def test_the_same_answer_in_every_group_of_a_step(tmp_path):
    folder = tmp_path / "rollouts"
    dump(folder, 1, [record(f"q{n}", "same", 0.1, gold=str(n)) for n in range(10)])
    assert split_rollouts(folder, tmp_path / "out", None, "sums")[0].counts.same_answer[0]["answer"] == "same"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "empty"),
        ('{"input": "q", "out', "not JSON"),
        ('{"input": "q", "output": "a", "gts": "4", "step": 1}', "no score"),
        ('{"input": "q", "output": "a", "gts": "4", "score": NaN, "step": 1}', "logged score is nan"),
    ],
)
def test_a_broken_dump_is_named_and_leaves_nothing_behind(run, tmp_path, content, words):
    (run / "3.jsonl").write_text(content)
    with pytest.raises(RecipeError, match=words) as found:
        split_rollouts(run, tmp_path / "out", None, "sums")
    assert "3.jsonl" in found.value.where
    assert sorted(path.name for path in tmp_path.iterdir()) == ["reward_file.py", "rollouts"]


def test_an_earlier_log_stays_when_a_later_one_fails(run, tmp_path):
    split_rollouts(run, tmp_path / "out", None, "sums")
    before = sorted(path.name for path in (tmp_path / "out").iterdir())
    (run / "3.jsonl").write_text("broken")
    with pytest.raises(RecipeError):
        split_rollouts(run, tmp_path / "out", None, "sums")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == before


def test_a_folder_without_dumps(tmp_path):
    with pytest.raises(RecipeError, match="holds no rollouts") as found:
        rollout_files(tmp_path)
    assert "rollout_data_dir" in found.value.fix


def test_the_folder_of_a_run_leads_to_those_below_it(run):
    with pytest.raises(RecipeError, match="holds no rollouts") as found:
        rollout_files(run.parent)
    assert found.value.fix == f"name {run}"
