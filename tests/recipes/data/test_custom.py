"""Users' files as rows: both engines' columns, images, splits, work that is done once, and a recipe made ready."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recipes.config import load, to_yaml
from recipes.data import custom, lengths
from recipes.data.custom import Conversion, convert, converted, ready
from recipes.engines import easyr1, verl
from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.preflight.data import check_data

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture(autouse=True)
def artifacts(tmp_path, monkeypatch):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "artifacts"))


def record(index=0, source="qa", **fields):
    return {"prompt": f"question {index}", "ground_truth": str(index), "data_source": source, **fields}


def write(folder: Path, found, name="data.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(one) + "\n" for one in found))
    return path


def made(conversion: Conversion):
    """Rows of both splits, and both manifests."""
    folder = conversion.folder
    manifests = convert(conversion, folder, "test")
    return [pq.read_table(folder / f"{name}.parquet").to_pylist() for name in ("train", "test")], manifests


def test_a_row_has_what_both_engines_read(tmp_path):
    path = write(tmp_path, [record(0, level=3), record(1, solution="It is 1."), record(2, "math")])
    (train, test), (manifest, _) = made(Conversion((path,), seed=3))
    rows = {row["prompt"][-1]["content"]: row for row in train + test}
    row = rows["question 0"]
    assert row["reward_model"] == {"style": "rule", "ground_truth": "0"}
    assert json.loads(row["answer"]) == {"data_source": "qa", "ground_truth": "0"}
    assert (row["data_source"], row["problem"]) == ("qa", "question 0")
    assert json.loads(row["extra_info"]["fields"]) == {"level": 3}
    assert row["extra_info"]["line"] == 1
    assert rows["question 1"]["extra_info"]["solution"] == "It is 1."
    assert "images" not in row
    assert manifest["source"][0]["file"] == "data.jsonl"
    assert len(train) + len(test) == 3


def test_the_same_content_is_found_again_and_another_is_not(tmp_path):
    path = write(tmp_path, map(record, range(4)))
    template = tmp_path / "t.jinja"
    template.write_text("{{ content }}!")
    assert converted(Conversion((path,), template=template).folder) is None
    made(Conversion((path,), template=template))
    folder = Conversion((path,), template=template).folder
    assert [manifest["split"] for manifest in converted(folder)] == ["train", "test"]
    places = {folder, Conversion((path,)).folder, Conversion((path,), template=template, seed=2).folder}
    template.write_text("{{ content }}?")
    places.add(Conversion((path,), template=template).folder)
    write(tmp_path, map(record, range(5)))
    places.add(Conversion((path,), template=template).folder)
    assert len(places) == 5
    conversion = Conversion((path,))
    for broken in ("train.parquet", "test.manifest.json"):
        made(conversion)
        (conversion.folder / broken).unlink()
        assert converted(conversion.folder) is None
    made(conversion)
    (conversion.folder / "train.parquet").write_bytes(b"cut")
    assert converted(conversion.folder) is None


def test_each_file_is_hashed_and_parsed_once(tmp_path, monkeypatch):
    path, opened = write(tmp_path, map(record, range(50))), []
    monkeypatch.setattr(
        "pathlib.Path.open", lambda self, *a, real=Path.open, **k: opened.append(self) or real(self, *a, **k)
    )
    made(Conversion((path,)))
    assert opened.count(path) == 2


def test_all_mistakes_come_at_once_and_leave_nothing_behind(tmp_path):
    found = [*map(record, range(8)), {"prompt": "p"}, record(9, images=["none.png"]), record(10)]
    found += [{**record(11), "prompt": "<image> where?"}, record(12, images=["a.png"])]
    (tmp_path / "a.png").write_bytes(PIXEL)
    conversion = Conversion((write(tmp_path, found),))
    with pytest.raises(RecipeError, match="3 records cannot be used") as caught:
        made(conversion)
    for line in ("line 9: there is no field ground_truth", "line 10: the image", "line 12: <image> is in the prompt"):
        assert line in caught.value.what
    assert not list(conversion.folder.glob("*"))
    with pytest.raises(RecipeError, match="no field ground_truth") as caught:
        made(Conversion((write(tmp_path, found[:9]),)))
    assert "line 9" in caught.value.where


@pytest.mark.parametrize(
    ("count", "what"),
    [(0, "no records"), (1, "is 1 record; the minimum is 2"), (3, "3 records with one and the same prompt")],
)
def test_too_few_records_are_told_the_minimum(tmp_path, count, what):
    with pytest.raises(RecipeError, match=what) as caught:
        made(Conversion((write(tmp_path, [record()] * count),)))
    assert "data.jsonl" in caught.value.where
    assert "two records" in caught.value.fix if not count else "--val_data" in caught.value.fix


def test_given_validation_data_is_kept_whole_and_not_trained_on(tmp_path):
    train, val = write(tmp_path, map(record, range(6))), write(tmp_path, map(record, (4, 5, 6, 6)), "val.jsonl")
    (rows, test), (manifest, _) = made(Conversion((train,), (val,)))
    assert [row["problem"] for row in rows] == [f"question {i}" for i in range(4)]
    assert [row["extra_info"]["index"] for row in rows] == [0, 1, 2, 3]
    assert len(test) == 4
    assert manifest["dropped"] == {"also in the validation data": 2}
    with pytest.raises(RecipeError, match="nothing is left to train on"):
        made(Conversion((train,), (train,)))


def test_system_message_and_template(tmp_path):
    own = [{"role": "system", "content": "My own."}, {"role": "user", "content": "question 9"}]
    path = write(tmp_path, [record(0), record(1), {**record(9), "prompt": own}])
    system, template = tmp_path / "s.txt", tmp_path / "t.jinja"
    system.write_text("Think first.\n")
    template.write_text("[{{ data_source }}] {{ content }}\nAnswer briefly.\n")
    (train, test), _ = made(Conversion((path,), system_prompt=system, template=template))
    messages = {row["prompt"][1]["content"]: row["prompt"][0]["content"] for row in train + test}
    assert messages == {
        "[qa] question 0\nAnswer briefly.": "Think first.",
        "[qa] question 1\nAnswer briefly.": "Think first.",
        "[qa] question 9\nAnswer briefly.": "My own.",
    }


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{{ content", "not Jinja"),
        ("Answer briefly.", "never uses the prompt"),
        ("{{ content }} {{ level }}", "uses level, which no record has"),
        ("{{ content.missing }}", "template fails"),
        ("{{ content.__class__.__mro__ }}", "template fails"),
        ("{% if content %}{% endif %}", "leaves nothing"),
        ("", "is empty"),
    ],
)
def test_a_template_that_cannot_be_used(tmp_path, text, what):
    template = tmp_path / "t.jinja"
    template.write_text(text)
    with pytest.raises(RecipeError, match=what):
        made(Conversion((write(tmp_path, [record()]),), template=template))


def test_images_by_path_and_by_data_uri(tmp_path):
    (tmp_path / "a.png").write_bytes(PIXEL)
    other = PIXEL + b"other"
    uri = f"data:image/png;base64,{base64.b64encode(other).decode()}"
    found = [record(0, images="a.png"), record(1, images=[uri, "a.png"]), record(2)]
    found[1]["prompt"] = "First <image>, then <image>?"
    (train, test), (manifest, _) = made(Conversion((write(tmp_path, found),)))
    images = {row["problem"]: [image["bytes"] for image in row["images"]] for row in train + test}
    assert images == {"<image>question 0": [PIXEL], "First <image>, then <image>?": [other, PIXEL], "question 2": []}
    assert manifest["most_images"] == 2
    sides = [{image["bytes"] for row in rows for image in row["images"]} for rows in (train, test)]
    assert not sides[0] & sides[1], "a picture is on one side"


@pytest.mark.parametrize(
    ("image", "what"),
    [
        ("none.png", "cannot be read"),
        ("data.jsonl", "is no PNG"),
        ("data:image/png;base64,####", "data URI cannot be read"),
        (7, "neither a path nor a data URI"),
    ],
)
def test_images_that_cannot_be_used(tmp_path, image, what):
    with pytest.raises(RecipeError, match=what) as caught:
        made(Conversion((write(tmp_path, [record(0, images=[image]), record(1)]),)))
    assert "line 1" in caught.value.where


TINY = str(ROOT / "recipes" / "tasks" / "countdown" / "tiny")


# A recipe whose data is a user's file.


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_many(tmp_path / "mine.jsonl", 40)


def write_many(path, count, length=1):
    lines = [
        {"prompt": f"{length * 'Make '}{i}?", "ground_truth": i, "data_source": ("qa", "math")[i % 2]}
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def prepared(*words, hardware="cpu", batch=4):
    said = []
    arguments = ["--model", TINY, "--train_batch_size", str(batch), *words]
    recipe = load("custom", arguments=arguments, environ={}, hardware=hardware)
    return ready(recipe, said.append), said


def test_the_trainer_gets_finished_rows_and_the_user_the_counts(file, tmp_path):
    (tmp_path / "s.txt").write_text("Be brief.")
    (tmp_path / "t.jinja").write_text("{{ content }} Now.")
    recipe, said = prepared(
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
    first, said = prepared("--data", "mine.jsonl")
    assert any(line.startswith("converting") for line in said)

    def never(*_args, **_kwargs):
        raise AssertionError("was there already")

    with monkeypatch.context() as patch:
        patch.setattr(custom, "convert", never)
        patch.setattr(lengths, "PromptCounter", never)
        again, said = prepared("--data", "mine.jsonl")
    assert again.data.train_files == first.data.train_files
    assert not any(line.startswith("converting") for line in said)
    assert any(line.startswith("rows: train") for line in said)
    write_many(file, 41)
    assert prepared("--data", "mine.jsonl")[0].data.train_files != first.data.train_files


def test_finished_rows_with_validation_are_left_as_they_are(file, tmp_path):
    recipe, _ = prepared("--data", "mine.jsonl")
    words = ["--data", recipe.data.train_files, "--val_data", recipe.data.val_files]
    again, said = prepared(*words)
    assert said == []
    assert again.data.train_files == recipe.data.train_files
    (tmp_path / "s.txt").write_text("Be brief.")
    with pytest.raises(RecipeError, match="the data is in finished rows"):
        verl.translate(prepared(*words, "--system_prompt", "s.txt")[0])
    only_train, said = prepared("--data", recipe.data.train_files)
    assert any("held out" in line for line in said)
    assert only_train.data.train_files != recipe.data.train_files


def test_rows_that_another_program_made_for_the_engine_are_finished(file, tmp_path):
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    row = {"data_source": "x", "prompt": chat, "reward_model": {"style": "rule", "ground_truth": "1"}}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "verl.parquet")
    pq.write_table(pa.Table.from_pylist([{"problem": "p", "answer": "1"}]), tmp_path / "easyr1.parquet")
    for engine in ("verl", "easyr1"):
        words = [f"--data={engine}.parquet", f"--val_data={engine}.parquet", "--engine", engine]
        recipe, said = prepared(*words, hardware="gpu")
        assert said == []
        assert recipe.data.train_files == str(tmp_path / f"{engine}.parquet")


def test_plain_parquet_is_converted_and_several_files_are_one(file, tmp_path):
    table = pa.Table.from_pylist([{"prompt": f"p{i}", "ground_truth": i, "data_source": "qa"} for i in range(20)])
    pq.write_table(table, tmp_path / "a.parquet")
    recipe, _ = prepared("--data", "[mine.jsonl, a.parquet]")
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
    write_many(tmp_path / "val.jsonl", 1, length=2)
    words = ["--data", "mine.jsonl", "--val_data", "val.jsonl", "--max_prompt_length", str(limit)]
    recipe, _ = prepared(*words, batch=batch)
    with pytest.raises(RecipeError, match=message) as caught:
        check_data(recipe)
    assert "MAX_PROMPT_LENGTH" in caught.value.fix


def test_long_prompts_are_counted_before_the_start(file, tmp_path):
    with (tmp_path / "mine.jsonl").open("a") as lines:
        lines.write(json.dumps({"prompt": 100 * "Make ", "ground_truth": 1, "data_source": "qa"}))
    write_many(tmp_path / "val.jsonl", 1, length=2)
    recipe, _ = prepared("--data", "mine.jsonl", "--val_data", "val.jsonl", "--max_prompt_length", "60")
    (note,) = check_data(recipe)
    assert "1 of 41 prompts are longer than data.max_prompt_length 60" in note


def test_a_dry_run_asks_no_hub(file):
    recipe = load("custom", arguments=["--model", "nobody/nothing", "--data", "mine.jsonl"], environ={}, hardware="gpu")
    said = []
    ready(recipe, said.append, fetch=False)
    assert "nobody/nothing is not in the hub's cache" in said[-1]


def test_easyr1_gets_the_source_inside_the_answer(file):
    recipe, _ = prepared("--data", "mine.jsonl", "--engine", "easyr1", "--n_gpus", "1", hardware="gpu")
    keys = easyr1.translate(recipe)
    row = pq.read_table(keys["data.train_files"]).to_pylist()[0]
    assert json.loads(row[keys["data.answer_key"]])["data_source"] == row["data_source"]
    assert "data.system_prompt" not in keys


def test_a_missing_file_is_named(file):
    with pytest.raises(RecipeError, match=r"none\.json does not exist"):
        prepared("--data", "none.json")


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
    recipe, _ = prepared("--data", "mine.jsonl", *words)
    assert recipe.worker.rollout.limit_images == limit


def test_text_alone_asks_for_no_images(file):
    assert prepared("--data", "mine.jsonl")[0].worker.rollout.limit_images == 0


def test_the_embedded_model_makes_room_for_the_users_prompts_unless_the_user_says_how_much(tmp_path, monkeypatch):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "artifacts"))
    rows = [
        {"prompt": f"How many eggs are {i} eggs? " * 4, "ground_truth": str(i), "data_source": "math"}
        for i in range(20)
    ]
    (tmp_path / "my.json").write_text(json.dumps(rows))
    (tmp_path / "long.json").write_text(json.dumps([{**row, "prompt": row["prompt"] * 9} for row in rows[:9]] + rows))

    def limit(file, *arguments):
        recipe = load("custom", arguments=["--data", str(tmp_path / file), *arguments], environ={}, hardware="cpu")
        return ready(recipe, lambda line: None).data.max_prompt_length

    assert 48 < limit("my.json") < 448
    assert limit("long.json") == 512 - 64, "the model's positions, less the response's"
    assert limit("my.json", "--max_prompt_length", "300") == 300
