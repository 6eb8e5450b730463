"""Metrics and rollouts, read while they are written."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recipes.data.rows import make_row, write_split
from recipes.monitor.metrics import (
    MetricsFollower,
    Sources,
    Step,
    adopt_leftovers,
    read_history,
    rollout_accuracy,
    validation,
)
from recipes.monitor.progress import step_line


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


ROWS = (
    ("math", "Compute 1 + 1.", "2"),
    ("qa", "How many moons has Mars?", "2"),
    ("qa", "How many moons has Mars? In French, please.", "deux"),
    ("qa", "Who?", "Ada"),
    ("label", "Who? A or B?", "A"),
    ("label", "Yes or no?", "Ada"),
)


def write(path, rows):
    made = (
        make_row(data_source=s, prompt=p, ground_truth=t, ability="", extra_info={"split": "train", "index": i})
        for i, (s, p, t) in enumerate(rows)
    )
    write_split(path, made, manifest={})
    return str(path)


@pytest.fixture(params=[1, 2], ids=["one file", "two files"])
def sources(tmp_path, request):
    parts = [ROWS] if request.param == 1 else [ROWS[:2], ROWS[2:]]
    return Sources([write(tmp_path / f"{i}.parquet", part) for i, part in enumerate(parts)])


@pytest.mark.parametrize(("source", "prompt", "truth"), ROWS)
def test_the_source_of_every_row_is_found(sources, source, prompt, truth):
    assert sources.of(truth, f"system\nuser\n{prompt}\nassistant\n") == source


def test_what_no_row_has_belongs_to_no_source(sources):
    assert sources.of("3", "user\nCompute 1 + 2.") is None
    assert sources.of("2", "user\nAnother question") is None


def rollout(source, prompt, truth, score):
    return json.dumps({"input": f"user\n{prompt}\nassistant\n", "gts": truth, "score": score}) + "\n"


def test_accuracy_by_source(sources, tmp_path):
    file = tmp_path / "3.jsonl"
    assert sources.accuracy(file) == {}
    file.write_text("".join(rollout(*row, score) for row in ROWS for score in (1.0, 0.1 if row[0] == "qa" else 1.0)))
    assert sources.accuracy(file) == {"label": 1.0, "math": 1.0, "qa": 0.5}
    file.write_text(file.read_text() + '{"sco')
    assert sources.accuracy(file) == {}


def test_one_source_is_not_told_apart(tmp_path):
    sources = Sources([write(tmp_path / "a.parquet", ROWS[1:3]), str(tmp_path / "none.parquet")])
    (tmp_path / "1.jsonl").write_text(rollout(*ROWS[1], 1.0))
    assert sources.accuracy(tmp_path / "1.jsonl") == {}


def test_the_line_of_a_step_names_every_source():
    line = step_line(Step(2, {}), 4, 0.625, {"math": 0.5, "qa": 0.75})
    assert "| accuracy 0.625 (math 0.500, qa 0.750) |" in line
    assert "| accuracy 0.625 |" in step_line(Step(2, {}), 4, 0.625, {})


def test_rows_of_another_program_with_parts_and_numbers_do_no_harm(tmp_path):
    parts = [{"type": "image"}, {"type": "text"}]
    rows = [
        {"data_source": source, "prompt": [{"role": "user", "content": parts}], "reward_model": {"ground_truth": truth}}
        for source, truth in (("a", 1), ("b", 2))
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    sources = Sources([str(tmp_path / "a.parquet")])
    (tmp_path / "1.jsonl").write_text(rollout("a", "p", 1, 1.0) + rollout("b", "p", 2, 0.0))
    assert sources.accuracy(tmp_path / "1.jsonl") == {"a": 1.0, "b": 0.0}
