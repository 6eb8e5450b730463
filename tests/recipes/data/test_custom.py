"""Users' files as rows: both engines' columns, images, splits, work that is done once, and a recipe made ready."""

import base64
import json
from pathlib import Path

import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from recipes.config import load, to_yaml
from recipes.config.checks import require_supported
from recipes.data import custom
from recipes.data.custom import Conversion, convert, converted, ready
from recipes.data.readers import Columns
from recipes.data.rows import read_rows
from recipes.engines.worked_answers import messages_of
from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.preflight.data_files import check_data
from recipes.rewards.function import Call, RewardFunction
from tests.mistakes import mistake

PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgZGIGAAAOAAfXb+R4AAAAAElFTkSuQmCC")


@pytest.fixture(autouse=True)
def artifacts(tmp_path, monkeypatch):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "artifacts"))


def record(index=0, source="qa", **fields):
    return {"prompt": f"question {index}", "ground_truth": str(index), "data_source": source, **fields}


def write(folder: Path, records, name="data.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


def made(conversion: Conversion):
    """Rows of both splits, and both manifests."""
    folder = conversion.folder
    manifests = convert(conversion, folder, "test")
    return [pq.read_table(folder / f"{name}.parquet").to_pylist() for name in ("train", "test")], manifests


def test_a_row_has_what_both_engines_read(tmp_path):
    own = [{"role": "system", "content": "My own."}, {"role": "user", "content": "question 2"}]
    rows = [record(0, level=3), record(1, solution="It is 1."), {**record(2, "math"), "prompt": own}]
    system, template = tmp_path / "s.txt", tmp_path / "t.jinja"
    system.write_text("Think first.\n")
    template.write_text("[{{ data_source }}] {{ content }}\nAnswer briefly.\n")
    (train, test), (manifest, _) = made(Conversion((write(tmp_path, rows),), system_prompt=system, template=template))
    rows = {row["extra_info"]["line"]: row for row in train + test}
    prompts = {line: [message["content"] for message in row["prompt"]] for line, row in rows.items()}
    assert prompts == {
        1: ["Think first.", "[qa] question 0\nAnswer briefly."],
        2: ["Think first.", "[qa] question 1\nAnswer briefly."],
        3: ["My own.", "[math] question 2\nAnswer briefly."],
    }
    assert rows[1]["reward_model"] == {"style": "rule", "ground_truth": "0"}
    assert json.loads(rows[1]["answer"]) == {"data_source": "qa", "ground_truth": "0"}
    assert (rows[1]["data_source"], rows[1]["problem"]) == ("qa", "\n\n".join(prompts[1]))
    assert json.loads(rows[1]["extra_info"]["fields"]) == {"level": 3}
    assert rows[2]["extra_info"]["solution"] == "It is 1."
    assert "images" not in rows[1]
    assert manifest.source == "data.jsonl, s.txt, t.jinja"


def test_worked_answers_with_calls_are_messages_in_every_row(tmp_path):
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    turns = [("assistant", None, [call]), ("tool", "2", None), ("assistant", "It is 2.", None)]
    messages = [{"role": role, "content": text, "tool_calls": calls} for role, text, calls in turns]
    rows = [record(0, solution=messages), record(1, solution="It is 1."), record(2)]
    (train, test), _ = made(Conversion((write(tmp_path, rows),)))
    solutions = {row["extra_info"]["line"]: messages_of(row["extra_info"]["solution"]) for row in train + test}
    assert [len(solutions[line]) for line in (1, 2, 3)] == [3, 1, 0]
    assert solutions[1][0] == {"role": "assistant", "content": "", "tool_calls": [call]}
    parts = [{"role": "assistant", "content": [{"type": "text", "text": "It is 2."}]}]
    for solution in (messages[:2], parts):
        wrong = write(tmp_path, [record(0, solution=solution), record(1)])
        mistake(lambda wrong=wrong: made(Conversion((wrong,))), "messages of assistant and tool")


def test_a_truth_that_is_no_text_is_a_column_of_a_reward_of_trls_form_too(tmp_path):
    """verl's form gets it as text; TRL hands over what the data set has, None for a row without one."""
    rows = [record(0), record(1, ground_truth=None), record(2, ground_truth=4.0), record(3, ground_truth=["a"])]
    (train, test), _ = made(Conversion((write(tmp_path, rows),), columns=Columns(truth_needed=False)))
    seen = {}

    def reward(completions, ground_truth, **columns):
        seen[int(columns["prompts"][0].split()[1])] = ground_truth[0]
        return [0.0]

    for row in train + test:
        RewardFunction(reward).score(Call("qa", "", row["reward_model"]["ground_truth"], row["extra_info"]))
    assert seen == {0: "0", 1: None, 2: 4, 3: ["a"]}

    own = {"answer": "7", "ground_truth": "a text"}
    rows = [record(0, **own), record(1, **{**own, "ground_truth": None}), record(2, **own)]
    (train, test), _ = made(Conversion((write(tmp_path, rows, "other.jsonl"),), columns=Columns(ground_truth="answer")))
    for row in train + test:
        RewardFunction(reward).score(Call("qa", "", row["reward_model"]["ground_truth"], row["extra_info"]))
    assert seen == {0: "a text", 1: None, 2: "a text", 3: ["a"]}, "the truth is in another column"


def test_a_gap_in_a_column_is_none_and_whole_numbers_that_it_made_floats_are_whole_again(tmp_path):
    """TRL's rewards take every column in every row, and `str(right) in text` failed for 5.0."""
    rows = [
        record(0, answer=5.0, weight=1.0, note=None),
        record(1, answer=None, weight=0.5, level=[2.0]),
        record(2, answer=7.0, weight=2.0),
    ]
    (train, test), _ = made(Conversion((write(tmp_path, rows),)))
    fields = {row["extra_info"]["line"]: row["extra_info"]["fields"] for row in train + test}
    assert fields == {
        1: '{"answer": 5, "weight": 1.0, "note": null, "level": null}',
        2: '{"answer": null, "weight": 0.5, "note": null, "level": [2.0]}',
        3: '{"answer": 7, "weight": 2.0, "note": null, "level": null}',
    }


def test_a_users_file_keeps_its_ids_and_repeated_ones_are_refused_with_their_lines(tmp_path):
    records = [record(0, id="first"), record(1, id=17), record(2), record(3, id="")]
    (tmp_path / "t.jinja").write_text("{{ content }} Answer briefly.")
    found = []
    for template in (None, tmp_path / "t.jinja"):
        (train, test), _ = made(Conversion((write(tmp_path, records),), template=template))
        found.append({row["extra_info"]["line"]: row["id"] for row in train + test})
    assert found[0] == found[1], "another template leaves the ids"
    assert (found[0][1], found[0][2], len({*found[0].values()})) == ("first", "17", 4)
    for wrong, places in (([1, "1", 2], ("line 1", "line 2")), ([[1], 2], ("line 1",))):
        conversion = Conversion((write(tmp_path, [record(index, id=own) for index, own in enumerate(wrong)]),))
        error = mistake(lambda conversion=conversion: made(conversion))
        assert all(place in str(error) for place in places)


def test_the_same_content_is_found_again_and_another_is_not(tmp_path):
    path, template = write(tmp_path, map(record, range(4))), tmp_path / "t.jinja"
    template.write_text("{{ content }}!")
    conversion = Conversion((path,), template=template)
    assert converted(conversion.folder) is None
    made(conversion)
    assert [manifest.split for manifest in converted(conversion.folder)] == ["train", "test"]
    (conversion.folder / "train.parquet").write_bytes(b"cut")
    assert converted(conversion.folder) is None
    made(conversion)
    assert converted(conversion.folder)
    places = {conversion.folder, Conversion((path,)).folder, Conversion((path,), template=template, seed=2).folder}
    template.write_text("{{ content }}?")
    places.add(Conversion((path,), template=template).folder)
    write(tmp_path, map(record, range(5)))
    places.add(Conversion((path,), template=template).folder)
    assert len(places) == 5


def test_all_mistakes_come_at_once_and_leave_nothing_behind(tmp_path):
    records = [*map(record, range(8)), {"prompt": "p"}, record(9, images=["none.png"]), record(10)]
    records += [{**record(11), "prompt": "<image> where?"}, record(12, images=["a.png"])]
    (tmp_path / "a.png").write_bytes(PIXEL)
    conversion = Conversion((write(tmp_path, records),))
    what = mistake(lambda: made(conversion)).what
    for line in ("line 9: there is no field ground_truth", "line 10: the image", "line 12: <image> is in the prompt"):
        assert line in what
    assert not list(conversion.folder.glob("*"))


@pytest.mark.parametrize(
    ("records", "template", "where"),
    [
        ([], None, "data.jsonl"),
        ([record()] * 3, None, "data.jsonl"),
        ([record(0, images=["data.jsonl"]), record(1)], None, "line 1"),
        ([record(0, images=["data:image/png;base64,####"])], None, "line 1"),
        ([record()], "{{ content", "t.jinja, line 1"),
        ([record()], "Answer briefly.", "t.jinja"),
        ([record()], "{{ content }} {{ level }}", "line 1"),
        ([record()], "{% if content == 1 %}{{ content }}{% endif %}", "line 1"),
        ([record()], "{{ content.__class__.__mro__ }}", "line 1"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path, records, template, where):
    if template is not None:
        (tmp_path / "t.jinja").write_text(template)
    file = None if template is None else tmp_path / "t.jinja"
    assert where in mistake(lambda: made(Conversion((write(tmp_path, records),), template=file))).where


def test_a_column_has_one_type_in_training_and_validation_and_nan_is_a_gap(tmp_path):
    for name, prompts, levels in (("train", "abc", [5.0, 2.5, None]), ("val", "de", [6.0, 7.0])):
        table = {"prompt": list(prompts), "ground_truth": "1", "data_source": "qa", "level": levels}
        pa_table = pa.Table.from_pandas(pandas.DataFrame(table), preserve_index=False)
        levels_as_nan = pa.array([float("nan") if level is None else level for level in levels])
        pq.write_table(pa_table.set_column(3, "level", levels_as_nan), tmp_path / f"{name}.parquet")
    (train, test), _ = made(Conversion((tmp_path / "train.parquet",), (tmp_path / "val.parquet",)))
    levels = [json.loads(row["extra_info"]["fields"])["level"] for row in train + test]
    assert repr(levels) == "[5.0, 2.5, None, 6.0, 7.0]"


def test_given_validation_data_is_kept_whole_and_not_trained_on(tmp_path):
    train, val = write(tmp_path, map(record, range(6))), write(tmp_path, map(record, (4, 5, 6, 6)), "val.jsonl")
    (rows, test), (manifest, _) = made(Conversion((train,), (val,)))
    assert [row["problem"] for row in rows] == [f"question {i}" for i in range(4)]
    assert [row["extra_info"]["index"] for row in rows] == [0, 1, 2, 3]
    assert len(test) == 4
    assert manifest.dropped == {"in_validation_data": 2}
    mistake(lambda: made(Conversion((train,), (train,))))
    twins = write(tmp_path, [record(index, source) for index in range(2) for source in ("a", f"of one prompt {index}")])
    (rows, test), (manifest, _) = made(Conversion((twins,)))
    assert (len(rows), len(test), manifest.dropped) == (2, 1, {"in_validation_data": 1})


def test_images_by_path_and_by_data_uri(tmp_path):
    (tmp_path / "a.png").write_bytes(PIXEL)
    other = PIXEL + b"other"
    uri = f"data:image/png;base64,{base64.b64encode(other).decode()}"
    records = [record(0, images="a.png"), record(1, images=[uri, "a.png"]), record(2)]
    records[1]["prompt"] = "First <image>, then <image>?"
    (train, test), (manifest, _) = made(Conversion((write(tmp_path, records),)))
    images = {row["problem"]: [image["bytes"] for image in row["images"]] for row in train + test}
    assert images == {"<image>question 0": [PIXEL], "First <image>, then <image>?": [other, PIXEL], "question 2": []}
    assert manifest.counts["most_images"] == 2
    sides = [{image["bytes"] for row in rows for image in row["images"]} for rows in (train, test)]
    assert not sides[0] & sides[1], "a picture is on one side"
    folder = Conversion((tmp_path / "data.jsonl",)).folder
    assert converted(folder) is not None
    (tmp_path / "a.png").write_bytes(PIXEL + b"made again")
    assert converted(folder) is None, "it is read again"


# A recipe whose data is a user's file.

TINY = str(ROOT / "recipes" / "tasks" / "countdown" / "tiny")


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_many(tmp_path / "mine.jsonl", 40)


def write_many(path, count):
    rows = [{"prompt": f"Make {i}?", "ground_truth": i, "data_source": ("qa", "math")[i % 2]} for i in range(count)]
    return write(path.parent, rows, path.name)


def prepared(*words, hardware="cpu"):
    lines = []
    arguments = ["--model", TINY, "--train_batch_size", "4", *words]
    recipe = load("custom", arguments=arguments, environ={}, hardware=hardware)
    return ready(recipe, lines.append), "\n".join(lines)


def test_the_trainer_gets_finished_rows_and_the_user_the_counts(file, tmp_path):
    recipe, lines = prepared("--data", "mine.jsonl", "--val_share", "0.1")
    assert [pq.read_metadata(path).num_rows for path in (recipe.data.train_files, recipe.data.val_files)] == [36, 4]
    assert "rows: train 36 (math 18, qa 18); test 4 (math 2, qa 2)" in lines
    assert recipe.worker.rollout.limit_images == 0
    (tmp_path / "config.yaml").write_text(to_yaml(recipe))
    assert load(str(tmp_path / "config.yaml"), environ={}, hardware="cpu").data == recipe.data


def test_one_instruction_for_all_rows_names_the_column_that_differs(tmp_path):
    alpaca = [
        {"n": i, "instruction": "Add.", "input": f"{i} and 1", "output": str(i), "data_source": "qa"} for i in range(9)
    ]
    columns = Columns("instruction", "output")
    fix = mistake(lambda: made(Conversion((write(tmp_path, alpaca),), columns=columns))).fix
    assert fix.startswith("the column input differs")
    assert "--template FILE shows it, with {{ content }} and {{ input }}" in fix
    same = [{**each, "input": ""} for each in alpaca]
    assert "input" not in mistake(lambda: made(Conversion((write(tmp_path, same),), columns=columns))).fix


def test_a_system_prompt_that_does_not_act_is_noted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = [{"role": "system", "content": "My own."}]
    asked = [[*own[: index % 4], {"role": "user", "content": f"question {index}"}] for index in range(40)]
    write(tmp_path, [{**record(index), "prompt": chat} for index, chat in enumerate(asked)], "mine.jsonl")
    (tmp_path / "s.txt").write_text("Think first.")
    note = "note: 30 rows have a system message of their own"
    for _ in ("converted", "found again"):
        assert note in prepared("--data", "mine.jsonl", "--system_prompt", "s.txt")[1]
    assert note not in prepared("--data", "mine.jsonl")[1]


def test_the_tiny_models_limit_rises_to_the_longest_prompt_of_both_files(file, tmp_path):
    write(tmp_path, [{**record(99), "prompt": "Make " + "9" * 200}], "val.jsonl")
    for words, longest in ((), 48), (("--val_data", "val.jsonl"), 109):
        recipe = load("custom", arguments=["--data", "mine.jsonl", *words], environ={}, hardware="cpu")
        assert ready(recipe, str).data.max_prompt_length == longest


def test_the_second_start_converts_nothing_and_a_changed_file_does(file, monkeypatch):
    first, _ = prepared("--data", "mine.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr(custom, "convert", None)
        again, _ = prepared("--data", "mine.jsonl")
    assert again.data.train_files == first.data.train_files
    write_many(file, 41)
    assert prepared("--data", "mine.jsonl")[0].data.train_files != first.data.train_files


def test_parquet_files_of_other_programs(file, tmp_path):
    chat = [{"role": role, "content": role} for role in ("user", "assistant", "user")]
    verls = {"data_source": "math", "ability": "math", "reward_model": {"style": "rule", "ground_truth": "1"}}
    rows = {
        "verl": [{**verls, "prompt": chat}],
        "easyr1": [{"problem": "p", "answer": "1"}],
        "text": [{**verls, "prompt": f"1 + {i}?"} for i in range(20)],
        "plain": [{"prompt": f"p{i}", "ground_truth": i, "data_source": "qa"} for i in range(20)],
    }
    for name, content in rows.items():
        pq.write_table(pa.Table.from_pylist(content), tmp_path / f"{name}.parquet")
    for engine in ("verl", "easyr1"):
        words = [f"--data={engine}.parquet", f"--val_data={engine}.parquet", "--engine", engine]
        recipe, lines = prepared(*words, hardware="gpu")
        assert (lines, recipe.data.train_files) == ("", str(tmp_path / f"{engine}.parquet"))
    recipe, _ = prepared("--data", "[mine.jsonl, plain.parquet]")
    assert sum(pq.read_metadata(path).num_rows for path in (recipe.data.train_files, recipe.data.val_files)) == 60
    pq.write_table(pq.read_table(tmp_path / "text.parquet").slice(0, 5), tmp_path / "val.parquet")
    recipe, _ = prepared("--data", "text.parquet", "--val_data", "val.parquet")
    assert pq.read_table(recipe.data.val_files).column("prompt")[0].as_py() == [{"role": "user", "content": "1 + 0?"}]


def test_images_in_the_file_are_let_in(file):
    pixel = "data:image/png;base64," + base64.b64encode(PIXEL).decode()
    with file.open("a") as lines:
        lines.write(json.dumps(record(50, images=[pixel, pixel])))
    assert prepared("--data", "mine.jsonl")[0].worker.rollout.limit_images == 2


def test_a_template_goes_through_a_written_list_and_shows_a_text_as_it_is(tmp_path):
    rows = [record(number, options="['red', 'blue']", schema='{"text": 1}', range="[1-2]") for number in range(4)]
    template = tmp_path / "t.jinja"
    template.write_text("{{ content }} {{ options | join('/') }} {{ schema.text }} {{ schema }} {{ range }}")
    (train, _), _ = made(Conversion((write(tmp_path, rows),), template=template))
    assert train[0]["prompt"][-1]["content"].endswith('red/blue 1 {"text": 1} [1-2]')


OWN = {
    "level": 3,
    "ability": "if",
    "reward_model": {"style": "model", "ground_truth": {"target": 5, "numbers": [2, 3]}},
    "extra_info": {"index": "own", "split": "x", "keyword": "moon"},
}


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_rows_of_verl_keep_all_that_they_have_and_options_act_on_them(tmp_path, suffix):
    path, template = tmp_path / f"rows.{suffix}", tmp_path / "t.jinja"
    rows = [{**OWN, "data_source": "theirs", "prompt": [{"role": "user", "content": f"q{i}"}]} for i in range(20)]
    write(tmp_path, rows, path.name)
    if suffix != "jsonl":
        getattr(pandas.DataFrame(rows), f"to_{suffix}")(path, index=False)
    template.write_text("{{ content }} of {{ level }}")
    words = ["--data", str(path), "--reward_func", "examples/custom_task/my_reward.py"]
    for further, source, end in (
        ((), "theirs", "9"),
        (("--data_source", "a", "--template", str(template)), "a", "9 of 3"),
    ):
        recipe, _ = prepared(*words, *further)
        made_rows = [row for file in (recipe.data.train_files, recipe.data.val_files) for row in read_rows(file)]
        assert {row["data_source"] for row in made_rows} == {source}
        assert any(row["prompt"] == [{"role": "user", "content": f"q{end}"}] for row in made_rows)
        assert all(
            {name: json.loads(row[name]) if row[name] == "3" else row[name] for name in OWN} == OWN for row in made_rows
        )
        assert len({row["id"] for row in made_rows}) == 20
    if suffix == "parquet":
        with pytest.raises(RecipeError, match="validation data"):
            prepared(*words, "--val_data", str(path), "--data_source", "a")
        assert prepared(*words, "--val_data", str(path))[0].data.train_files == str(path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"extra_info": "from a book"}, "extra_info is 'from a book'"),
        ({"reward_model": {"ground_truth": "5"}}, "reward_model.ground_truth is text, and that of"),
        ({"extra_info": {"marks": [1, "5"]}}, "extra_info.marks[] is text, and that of"),
        ({"extra_info": {"marks": [-(2**63), 2**63]}}, "int too large"),
    ],
)
def test_a_row_of_verl_that_no_column_can_hold_is_named_with_its_line(tmp_path, change, named):
    rows = [{"data_source": "x", "prompt": f"{i}?", "reward_model": {"ground_truth": i}} for i in range(9)]
    rows[6] |= change
    words = ["--data", str(write(tmp_path, rows)), "--reward_func", "examples/custom_task/my_reward.py"]
    assert ("line 7" in mistake(lambda: prepared(*words), named).where) == (named != "int too large")
    assert prepared(*words, "engine=easyr1"), "EasyR1 reads neither"


@pytest.mark.parametrize("engine", ["verl", "easyr1"])
@pytest.mark.parametrize("prompt", [b"1 + 1?", 2, ["1 + 1?"], [{"role": "user", "content": b"1 + 1?"}]])
def test_a_column_of_prompts_that_is_no_text_is_named_with_its_row(tmp_path, engine, prompt):
    """EasyR1's rows counted as finished whatever the column held, and the check of the prompts raised TypeError."""
    row = {"mine": prompt, "answer": "2", "data_source": "x", "reward_model": {"ground_truth": "2"}}
    pq.write_table(pa.Table.from_pylist([row] * 9), path := tmp_path / "rows.parquet")
    words = ["--data", str(path), "--val_data", str(path), "--prompt_key", "mine", f"engine={engine}"]
    error = mistake(lambda: prepared(*words, "--reward_func", "examples/custom_task/my_reward.py"), "mine")
    assert error.where == f"{path}, row 1"


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_prompts_of_easyr1_are_texts_of_any_type(tmp_path, kind):
    text = pa.array(["1 + 1?"] * 2)
    column = text.dictionary_encode() if pa.types.is_dictionary(kind) else text.cast(kind)
    pq.write_table(pa.table({"problem": column, "answer": ["2", "2"]}), path := tmp_path / "rows.parquet")
    assert custom.is_finished(path, load("gsm8k", arguments=["engine=easyr1"], environ={}))


def test_rows_of_verl_with_columns_of_our_names_keep_them_and_their_truth(tmp_path):
    """The reward's truth is that of `reward_model`, as where the file is not converted."""
    own = {"data_source": "x", "reward_model": {"ground_truth": "7"}, "ground_truth": "a worked answer", "problem": 5}
    (train, test), _ = made(Conversion((write(tmp_path, [{**own, "prompt": f"{i}?"} for i in range(4)]),)))
    assert all({name: row[name] for name in own} == own for row in train + test)
    for empty in None, "":
        rows = [{**own, "reward_model": {"ground_truth": empty}, "prompt": f"{i}?"} for i in range(4)]
        (train, test), _ = made(Conversion((write(tmp_path, rows),)))
        assert {row["reward_model"]["ground_truth"] for row in train + test} == {"a worked answer"}


def test_what_names_data_is_a_pattern_a_name_with_a_comma_or_a_set_of_a_hub(tmp_path, monkeypatch):
    """A folder stands for a set on a hub: `datasets` loads both in one way."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name, first in (("part-0.jsonl", 0), ("part-1.jsonl", 20), ("a,b@c.jsonl", 0), ("set/train.jsonl", 0)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path, map(record, range(first, first + 20)), name)
    for data, rows in (("part-*.jsonl", 40), ("a,b@c.jsonl", 20), ("./set@train", 20)):
        recipe, lines = prepared("--data", data)
        files = (recipe.data.train_files, recipe.data.val_files)
        assert sum(pq.read_metadata(path).num_rows for path in files) == rows, lines
    for data, named in (("set", "is a folder"), ("none.jsonl", "does not exist"), ("./set@none", "cannot be loaded")):
        assert named in mistake(lambda data=data: prepared("--data", data)).what


def test_an_error_without_a_text_is_named_by_its_class(monkeypatch):
    def fail(*arguments, **named):
        raise TimeoutError

    monkeypatch.setattr("datasets.load_dataset", fail)
    assert mistake(lambda: prepared("--data", "org/set@train")).what.endswith("cannot be loaded: TimeoutError")


def test_columns_of_a_recipe_file_count_and_a_template_sees_the_others(tmp_path):
    rows = [
        {"frage": f"question {index}", "answer": "A", "image": "a.png", "options": ["one", "two"]}
        for index in range(20)
    ]
    path, template = write(tmp_path, rows), tmp_path / "t.jinja"
    recipe = yaml.safe_load((ROOT / "configs/custom.yaml").read_text())
    recipe["tiny"]["data"] = {"prompt_key": "frage", "answer_key": "answer", "data_source": "qa"}
    recipe["tiny"]["data"]["train_files"] = str(path)
    (tmp_path / "own.yaml").write_text(json.dumps(recipe))
    template.write_text("{{ content }} {{ options | join(' or ') }}?")
    for further, end, said in ((), "", 1), ((f"--template={template}",), " one or two?", 0):
        words = ["data.rollout_batch_size=8", *further]
        recipe = ready(load(str(tmp_path / "own.yaml"), arguments=words, environ={}, hardware="cpu"), str)
        assert next(read_rows(recipe.data.train_files))["problem"].endswith(end)
        remarks = "\n".join(check_data(recipe))
        assert remarks.count("prompts do not show their row's column options") == said
        assert "column image; --image_key image" in remarks


def test_truths_that_count_options_are_named_where_prompts_have_letters(tmp_path):
    """MMLU's form; an option that is that number, or a prompt with numbers, is the user's own choice."""
    lettered = "{% for each in choices %}{{ 'AB'[loop.index0] }}. {{ each }}\n{% endfor %}"
    (tmp_path / "letters").write_text("{{ content }}\n" + lettered)
    (tmp_path / "numbers").write_text("{{ content }} {{ choices | join(' ') }}")
    for template, choices, said in (("letters", ["x", "y"], 1), ("letters", ["1", "y"], 0), ("numbers", ["x", "y"], 0)):
        rows = [{"prompt": f"Which, {index}?", "choices": choices, "answer": 1} for index in range(20)]
        words = ["--answer_key=answer", "--data_source=qa", f"--template={tmp_path / template}"]
        recipe, _ = prepared("--data", str(write(tmp_path, rows)), *words)
        assert "\n".join(check_data(recipe)).count("count the options from 0") == said, (template, choices)


def test_several_turns_are_for_verl_alone(tmp_path):
    chat = [{"role": role, "content": role} for role in ("user", "assistant", "user")]
    path = str(write(tmp_path, [record(0), {**record(1), "prompt": chat}]))
    assert prepared("--data", path)
    error = mistake(lambda: prepared("--data", path, "--engine", "easyr1", hardware="gpu"))
    assert ("line 2" in error.where, "ENGINE=verl" in error.fix) == (True, True)


def test_a_plan_waits_for_validation_rows_that_the_recipe_makes_at_its_start(file):
    recipe = load("countdown", arguments=["--data", "mine.jsonl"], environ={"HARDWARE": "cpu"})
    assert ready(recipe, print, make=False) is recipe


def test_columns_of_ones_own_are_mapped_and_the_recipe_reads_ours(tmp_path):
    path = write(tmp_path, [{"frage": f"question {index}", "antwort": index} for index in range(20)])
    arguments = ["--data", str(path), "data.prompt_key=frage", "data.answer_key=antwort", "--data_source", "math"]
    recipe = ready(load("custom", arguments=arguments, environ={"HARDWARE": "cpu"}), lambda line: None)
    assert (recipe.data.prompt_key, recipe.data.answer_key) == (None, None)
    made_rows = pq.read_table(recipe.data.train_files).to_pylist()
    pairs = {(row["problem"], row["reward_model"]["ground_truth"]) for row in made_rows}
    assert pairs <= {(f"question {index}", str(index)) for index in range(20)}
    require_supported(recipe, "verl")


@pytest.mark.parametrize("name", ["mine.jsonl", "mine.csv", "mine.parquet"])
def test_a_column_of_pictures_that_is_not_there_is_named_with_those_that_are(tmp_path, name):
    """It was left out in silence where no prompt had <image>; one that later records alone have is there."""
    table = pandas.DataFrame([record(i, photo=None) for i in range(70)])
    (tmp_path / "mine.jsonl").write_text(table.to_json(orient="records", lines=True))
    table.to_csv(tmp_path / "mine.csv")
    table.to_parquet(tmp_path / "mine.parquet")
    error = mistake(lambda: made(Conversion((tmp_path / name,), columns=Columns(images="photos"))), name)
    assert "no column photos; its columns are" in error.what
    assert "photo" in error.what.partition("its columns are")[2]
    assert "--image_key" in error.fix
    made(Conversion((tmp_path / name,), columns=Columns(images="photo")))
    late = write(tmp_path, [*map(record, range(70)), record(70, photos=[])], "late.jsonl")
    made(Conversion((late,), columns=Columns(images="photos")))


def test_videos_are_refused_and_their_columns_are_as_named(tmp_path):
    """They were left out, and the model saw the text alone."""
    clip = {"videos": ["a.mp4"]}, {"videos": "['a.mp4']"}, {"clips": "a.mp4"}, {"audios": ["a.wav"]}
    for fields in clip:
        name = next(iter(fields))
        columns = Columns(videos="clips") if name == "clips" else Columns()
        file = write(tmp_path, [record(0, **fields), record(1, **{name: None}), record(2)], f"{name}.jsonl")
        error = mistake(lambda file=file, columns=columns: made(Conversion((file,), columns=columns)), "line 1")
        assert error.what == f"{name} has a value, and no recipe shows videos or sounds"
    made(Conversion((write(tmp_path, [record(0, videos=[]), record(1, videos="[]"), record(2)]),)))
    file = write(tmp_path, [*map(record, range(3))])
    mistake(lambda: made(Conversion((file,), columns=Columns(videos="clips"))), "no column clips")
    pixel = "data:image/png;base64," + base64.b64encode(PIXEL).decode()
    rows = [{**record(i), "prompt": f"<image><video>{i}?", "images": pixel} for i in range(3)]
    mistake(lambda: made(Conversion((write(tmp_path, rows),))), "<video> is in the prompt")


def test_a_column_of_videos_that_is_empty_is_gone_after_the_conversion(file):
    file.write_text("".join(json.dumps(record(i, clips=[])) + "\n" for i in range(40)))
    recipe, _ = prepared("--data", "mine.jsonl", "data.video_key=clips")
    assert recipe.data.video_key == "videos"
    check_data(recipe)
