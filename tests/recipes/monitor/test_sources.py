"""Training accuracy by data source, although rollouts do not name it."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recipes.data.rows import make_row, write_split
from recipes.monitor.metrics import Sources, Step
from recipes.monitor.progress import step_line

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
