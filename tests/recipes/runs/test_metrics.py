"""Metrics and responses, read while they are written."""

from __future__ import annotations

import json

from recipes.data.rows import make_row, write_split
from recipes.runs.metrics import (
    LOST,
    MetricsFollower,
    Step,
    adopt_leftovers,
    mark_lost_step,
    read_history,
)
from recipes.runs.rollouts import Groups, Rollouts


def line(step, **data):
    return json.dumps({"step": step, "data": data}) + "\n"


def test_lines_are_copied_when_they_are_whole_and_a_second_attempt_appends(tmp_path):
    first, second, history = tmp_path / "1", tmp_path / "2", tmp_path / "metrics.jsonl"
    follower = MetricsFollower(first, history)
    assert follower.poll() == []
    first.write_text(line(1, a=1.0) + line(2, a=2.0)[:7])
    assert [step.step for step in follower.poll()] == [1]
    first.write_text(line(1, a=1.0) + line(2, a=2.0))
    assert [step.data for step in follower.poll()] == [{"a": 2.0}]
    assert follower.poll() == []
    second.write_text(line(2, b=5.0) + line(3, a=6.0))
    MetricsFollower(second, history).poll()
    assert history.read_text() == first.read_text() + second.read_text()
    assert read_history(history) == [(1, {"a": 1.0}), (2, {"a": 2.0, "b": 5.0}), (3, {"a": 6.0})]


def test_what_an_abandoned_attempt_wrote_is_adopted_once_and_a_saved_step_without_metrics_is_marked(tmp_path):
    attempt, history = tmp_path / ".attempt-1.jsonl", tmp_path / "metrics.jsonl"
    history.write_text(line(1))
    attempt.write_text(line(1) + line(2) + '{"step": 3')
    adopt_leftovers([attempt], history)
    assert (history.read_text(), attempt.exists()) == (line(1) + line(2), False)
    assert [mark_lost_step(history, saved) for saved in (2, 3, 3, 9)] == [False, True, False, False]
    assert read_history(history)[-1] == Step(3, {LOST: 1})


def response(uid, score, **more):
    return json.dumps({"input": "p", "output": "o", "gts": "1", "score": score, "uid": uid} | more) + "\n"


def test_groups_are_measured_once_a_file_is_whole_and_of_this_attempt(tmp_path):
    lines = [response(f"a_{i}_0", 1.0) for i in range(4)] + [response(f"b_{i}_0", 0.1 * i) for i in range(4)]
    lines += [response(f"c_{i}_0", 0.1) for i in range(2)]
    file = tmp_path / "3.jsonl"
    file.write_text("".join(lines)[:-20])
    rollouts = Rollouts(tmp_path)
    assert rollouts.of(3) is None
    file.write_text("".join(lines))
    assert rollouts.of(3, since=file.stat().st_mtime + 1) is None
    assert rollouts.among([2, 3, 4]) == {3: Groups(groups=3, zero_variance=2, all_right=1, accuracy=0.4)}


ROWS = (
    ("math", "Compute 1 + 1.", "2"),
    ("qa", "How many moons has Mars?", "2"),
    ("qa", "How many moons has Mars? In French, please.", "deux"),
    ("label", "Who? A or B?", "2"),
)


def write(path, rows):
    made = (
        make_row(data_source=s, prompt=p, ground_truth=t, ability="", extra_info={"split": "train", "index": i})
        for i, (s, p, t) in enumerate(rows)
    )
    write_split(path, made, manifest={})
    return str(path)


def rollout(prompt, truth, score):
    return json.dumps({"input": f"user\n{prompt}\nassistant\n", "gts": truth, "score": score}) + "\n"


def test_each_response_is_counted_for_its_data_source(tmp_path):
    files = [write(tmp_path / "a.parquet", ROWS[:2]), write(tmp_path / "b.parquet", ROWS[2:])]
    lines = [rollout(p, t, score) for s, p, t in ROWS for score in (1.0, 0.1 if s == "qa" else 1.0)]
    (tmp_path / "3.jsonl").write_text("".join(lines))
    (tmp_path / "4.jsonl").write_text("".join(lines) + rollout("What?", "7", 0.0))
    rollouts = Rollouts(tmp_path, files)
    assert rollouts.of(3).by_source == {"label": 1.0, "math": 1.0, "qa": 0.5}
    assert rollouts.of(4).by_source["unknown"] == 0.0
