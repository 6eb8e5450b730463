"""A recipe whose data is a user's file is made ready for the trainer, once, and says what it found."""

from __future__ import annotations

import base64
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recipes.config import load, to_yaml
from recipes.data import custom as module
from recipes.data.custom import ready
from recipes.engines import easyr1, verl
from recipes.errors import RecipeError
from recipes.paths import ROOT

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
TINY = str(ROOT / "recipes" / "tasks" / "countdown" / "tiny")


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "artifacts"))
    monkeypatch.chdir(tmp_path)
    return write(tmp_path / "mine.jsonl", 40)


def write(path, count, length=1):
    lines = [
        {"prompt": f"{length * 'Make '}{i}?", "ground_truth": i, "data_source": ("qa", "math")[i % 2]}
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def made(*words, hardware="cpu", batch=4):
    said = []
    arguments = ["--model", TINY, "--train_batch_size", str(batch), *words]
    recipe = load("custom", arguments=arguments, environ={}, hardware=hardware)
    return ready(recipe, said.append), said


def test_the_trainer_gets_finished_rows_and_the_user_the_counts(file, tmp_path):
    (tmp_path / "s.txt").write_text("Be brief.")
    (tmp_path / "t.jinja").write_text("{{ content }} Now.")
    recipe, said = made(
        "--data", "mine.jsonl", "--system_prompt", "s.txt", "--template", "t.jinja", "--val_share", "0.1"
    )
    keys = verl.translate(recipe)
    (train,), (test,) = keys["data.train_files"], keys["data.val_files"]
    row = pq.read_table(train).to_pylist()[0]
    assert row["prompt"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"Make {row['answer'].split(': ')[-1][1:-2]}? Now."},
    ]
    assert pq.read_metadata(test).num_rows == 4
    assert any("rows: train 36 (math 18, qa 18); test 4 (math 2, qa 2)" in line for line in said)
    assert any("10% of each source's prompts" in line for line in said)
    assert any(line.startswith("prompt tokens: ") for line in said)
    assert load(write_yaml(tmp_path, recipe), environ={}, hardware="cpu").data == recipe.data


def write_yaml(folder, recipe):
    path = folder / "config.yaml"
    path.write_text(to_yaml(recipe))
    return str(path)


def test_the_second_start_converts_and_counts_nothing_and_a_changed_file_does(file, monkeypatch):
    first, said = made("--data", "mine.jsonl")
    assert any(line.startswith("converting") for line in said)

    def never(*_args, **_kwargs):
        raise AssertionError("was there already")

    with monkeypatch.context() as patch:
        patch.setattr(module, "convert", never)
        patch.setattr(module, "PromptLengths", never)
        again, said = made("--data", "mine.jsonl")
    assert again.data.train_files == first.data.train_files
    assert not any(line.startswith("converting") for line in said)
    assert any(line.startswith("rows: train") for line in said)
    write(file, 41)
    assert made("--data", "mine.jsonl")[0].data.train_files != first.data.train_files


def test_finished_rows_with_validation_are_left_as_they_are(file, tmp_path):
    recipe, _ = made("--data", "mine.jsonl")
    words = ["--data", recipe.data.train_files, "--val_data", recipe.data.val_files]
    again, said = made(*words)
    assert said == []
    assert again.data.train_files == recipe.data.train_files
    (tmp_path / "s.txt").write_text("Be brief.")
    with pytest.raises(RecipeError, match="the data is in finished rows"):
        verl.translate(made(*words, "--system_prompt", "s.txt")[0])
    only_train, said = made("--data", recipe.data.train_files)
    assert any("held out" in line for line in said)
    assert only_train.data.train_files != recipe.data.train_files


def test_rows_that_another_program_made_for_the_engine_are_finished(file, tmp_path):
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    row = {"data_source": "x", "prompt": chat, "reward_model": {"style": "rule", "ground_truth": "1"}}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "verl.parquet")
    pq.write_table(pa.Table.from_pylist([{"problem": "p", "answer": "1"}]), tmp_path / "easyr1.parquet")
    for engine in ("verl", "easyr1"):
        words = [f"--data={engine}.parquet", f"--val_data={engine}.parquet", "--engine", engine]
        recipe, said = made(*words, hardware="gpu")
        assert said == []
        assert recipe.data.train_files == str(tmp_path / f"{engine}.parquet")


def test_plain_parquet_is_converted_and_several_files_are_one(file, tmp_path):
    table = pa.Table.from_pylist([{"prompt": f"p{i}", "ground_truth": i, "data_source": "qa"} for i in range(20)])
    pq.write_table(table, tmp_path / "a.parquet")
    recipe, _ = made("--data", "[mine.jsonl, a.parquet]")
    rows = [pq.read_metadata(path).num_rows for path in (recipe.data.train_files, recipe.data.val_files)]
    assert sum(rows) == 60


@pytest.mark.parametrize(
    ("limit", "batch", "message"),
    [(4, 4, "every prompt is longer"), (60, 41, "the other 40 do not fill a step of 41")],
)
def test_prompts_that_are_too_long_to_train_on(file, tmp_path, limit, batch, message):
    lines = (tmp_path / "mine.jsonl").read_text() + json.dumps(
        {"prompt": 100 * "Make ", "ground_truth": 1, "data_source": "qa"}
    )
    (tmp_path / "mine.jsonl").write_text(lines)
    write(tmp_path / "val.jsonl", 1, length=2)
    words = ["--data", "mine.jsonl", "--val_data", "val.jsonl", "--max_prompt_length", str(limit)]
    with pytest.raises(RecipeError, match=message) as caught:
        made(*words, batch=batch)
    assert "MAX_PROMPT_LENGTH" in caught.value.fix


def test_long_prompts_are_counted_before_the_start(file, tmp_path):
    with (tmp_path / "mine.jsonl").open("a") as lines:
        lines.write(json.dumps({"prompt": 100 * "Make ", "ground_truth": 1, "data_source": "qa"}))
    write(tmp_path / "val.jsonl", 1, length=2)
    _, said = made("--data", "mine.jsonl", "--val_data", "val.jsonl", "--max_prompt_length", "60")
    (note,) = (line for line in said if "longer than" in line)
    assert "1 of 41 prompts are longer than data.max_prompt_length 60" in note


def test_a_dry_run_asks_no_hub(file):
    recipe = load("custom", arguments=["--model", "nobody/nothing", "--data", "mine.jsonl"], environ={}, hardware="gpu")
    said = []
    ready(recipe, said.append, fetch=False)
    assert "nobody/nothing is not in the hub's cache" in said[-1]


def test_easyr1_gets_the_source_inside_the_answer(file):
    recipe, _ = made("--data", "mine.jsonl", "--engine", "easyr1", "--n_gpus", "1", hardware="gpu")
    keys = easyr1.translate(recipe)
    row = pq.read_table(keys["data.train_files"]).to_pylist()[0]
    assert json.loads(row[keys["data.answer_key"]])["data_source"] == row["data_source"]
    assert "data.system_prompt" not in keys


def test_a_missing_file_is_named(file):
    with pytest.raises(RecipeError, match=r"none\.json does not exist"):
        made("--data", "none.json")


def test_other_recipes_are_not_touched():
    recipe = load("countdown", environ={}, hardware="cpu")
    said = []
    assert ready(recipe, said.append) is recipe
    assert said == []


@pytest.mark.parametrize(("words", "limit"), [((), 2), (("worker.rollout.limit_images=5",), 5)])
def test_images_in_the_file_are_let_in(file, tmp_path, words, limit):
    pixel = "data:image/png;base64," + base64.b64encode(PIXEL).decode()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[3]["images"] = [pixel, pixel]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    recipe, _ = made("--data", "mine.jsonl", *words)
    assert recipe.worker.rollout.limit_images == limit


def test_text_alone_asks_for_no_images(file):
    assert made("--data", "mine.jsonl")[0].worker.rollout.limit_images == 0
