"""Metrics are copied as they come, survive everything, and are read without duplicates."""

from __future__ import annotations

import json

import pytest

from recipes.monitor.metrics import MetricsFollower, Step, adopt_leftovers, read_history, rollout_accuracy, validation


def line(step, **data):
    return json.dumps({"step": step, "data": data}) + "\n"


def test_lines_are_copied_when_they_are_whole(tmp_path):
    attempt, history = tmp_path / "attempt.jsonl", tmp_path / "metrics.jsonl"
    follower = MetricsFollower(attempt, history)
    assert follower.poll() == []
    attempt.write_text(line(1, a=1.0) + line(2, a=2.0)[:7])
    assert [step.step for step in follower.poll()] == [1]
    attempt.write_text(line(1, a=1.0) + line(2, a=2.0))
    assert [step.data for step in follower.poll()] == [{"a": 2.0}]
    assert follower.poll() == []
    assert history.read_text() == line(1, a=1.0) + line(2, a=2.0)


def test_a_second_attempt_appends(tmp_path):
    history = tmp_path / "metrics.jsonl"
    for number, steps in enumerate([(1, 2), (2, 3)]):
        attempt = tmp_path / f"{number}.jsonl"
        attempt.write_text("".join(line(step, attempt=number) for step in steps))
        MetricsFollower(attempt, history).poll()
    assert len(history.read_text().splitlines()) == 4
    assert [(step.step, step.data["attempt"]) for step in read_history(history)] == [(1, 0), (2, 1), (3, 1)]


def test_what_an_abandoned_attempt_wrote_is_adopted_once(tmp_path):
    attempt, history = tmp_path / ".attempt-1.jsonl", tmp_path / "metrics.jsonl"
    history.write_text(line(1))
    attempt.write_text(line(1) + line(2) + '{"step": 3')
    adopt_leftovers([attempt], history)
    assert [step.step for step in read_history(history)] == [1, 2]
    assert len(history.read_text().splitlines()) == 2
    assert not attempt.exists()
    adopt_leftovers([], tmp_path / "other.jsonl")
    assert not (tmp_path / "other.jsonl").exists()


def test_a_history_with_a_broken_line_is_read_all_the_same(tmp_path):
    history = tmp_path / "metrics.jsonl"
    history.write_text(line(1) + "{oops\n" + '{"step": null, "data": {}}\n' + line(2))
    assert [step.step for step in read_history(history)] == [1, 2]
    assert read_history(tmp_path / "none.jsonl") == []


def test_a_metric_that_is_null_counts_as_absent():
    step = Step(1, {"a": None, "b": 2, "c": "text"})
    assert step.get("a", "b") == 2.0
    assert step.get("a", "c", "d") is None


@pytest.mark.parametrize(("scores", "accuracy"), [([1.0, 0.1, 0.1, 1.0], 0.5), ([0.999], 0.0), ([], None)])
def test_accuracy_of_training_responses(tmp_path, scores, accuracy):
    (tmp_path / "7.jsonl").write_text("".join(json.dumps({"score": score}) + "\n" for score in scores))
    assert rollout_accuracy(tmp_path, 7) == accuracy


def test_the_file_of_an_earlier_attempt_does_not_count(tmp_path):
    file = tmp_path / "7.jsonl"
    file.write_text('{"score": 1.0}\n')
    written = file.stat().st_mtime
    assert rollout_accuracy(tmp_path, 7, since=written - 1) == 1.0
    assert rollout_accuracy(tmp_path, 7, since=written + 1) is None


def test_accuracy_is_unknown_while_the_file_is_being_written(tmp_path):
    (tmp_path / "7.jsonl").write_text('{"score": 1.0}\n{"sco')
    assert rollout_accuracy(tmp_path, 7) is None
    assert rollout_accuracy(tmp_path, 8) is None
    assert rollout_accuracy(None, 7) is None


def test_validation_accuracy_by_source():
    data = {"val-core/countdown/acc/mean@1": 0.5, "val-aux/countdown/score/mean@1": 0.6, "val-core/x/acc/best@4": 0.9}
    assert validation(Step(0, data)) == {"countdown": 0.5}


def test_a_reward_without_acc_is_told_by_its_mean_score():
    data = {"val-core/a/reward/mean@1": 0.25, "val-core/b/acc/mean@1": 0.5, "val-core/b/reward/mean@1": 0.7}
    assert validation(Step(0, data)) == {"b": 0.5, "a": 0.25}
