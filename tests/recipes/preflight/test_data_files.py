"""Rows that cannot be trained on are found before the trainer starts."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recipes.data.rows import manifest_path
from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.preflight import data_files, plan, reward
from tests.mistakes import mistake

from .conftest import write_rows


def change(path, column, values=None):
    """Drop a column of a file, or give it one value in every row."""
    table = pq.read_table(path).drop_columns([column])
    if values is not None:
        table = table.append_column(column, pa.array([values] * table.num_rows))
    pq.write_table(table, path)


@pytest.mark.parametrize(
    ("damage", "engine", "named"),
    [
        (lambda path: path.unlink(), "verl", "test.parquet"),
        (lambda path: path.write_bytes(b"PAR1 not really"), "verl", "test.parquet"),
        (lambda path: change(path, "prompt"), "verl", "prompt"),
        (lambda path: change(path, "reward_model", {"style": "rule"}), "verl", "reward_model.ground_truth"),
        (lambda path: change(path, "answer"), "easyr1", "answer"),
        (lambda path: pq.write_table(pq.read_table(path).slice(0, 0), path), "verl", "test.parquet"),
    ],
)
def test_a_file_that_cannot_be_trained_on(make, files, damage, engine, named):
    recipe = make().model_copy(update={"engine": engine})
    repeated, shared = data_files.check_data(recipe)
    assert repeated == "16 training rows have 1 different prompts"
    assert shared.startswith("4 of 4 validation rows have a prompt or an image of the training data")
    damage(files / "test.parquet")
    error = mistake(lambda: data_files.check_data(recipe), named)
    assert "data.val_files" in error.where
    assert "make it" not in error.fix, "the recipe's own file is another one"


@pytest.mark.parametrize(("last", "differs"), [("25", True), ("24.0", False), (" 24", False)])
def test_a_question_with_two_ground_truths(make, files, last, differs):
    for part in ("train", "test"):
        table = pq.read_table(files / f"{part}.parquet").drop_columns(["reward_model"])
        truths = ["24"] * (table.num_rows - 1) + [last if part == "test" else "24"]
        model = pa.array([{"style": "rule", "ground_truth": truth} for truth in truths])
        pq.write_table(table.append_column("reward_model", model), files / f"{part}.parquet")
    lines = [line for line in data_files.check_data(make()) if "different ground truths" in line]
    assert len(lines) == differs
    assert not differs or (lines[0].startswith("1 prompt ") and "'24' and '25'; leave" in lines[0])


@pytest.mark.parametrize(("engine", "column"), [("verl", "prompt"), ("easyr1", "problem")])
def test_a_row_without_a_prompt_is_named(make, files, engine, column):
    table = pq.read_table(files / "test.parquet")
    values = table[column].to_pylist()
    table = table.drop_columns([column]).append_column(column, pa.array([*values[:2], None, *values[3:]]))
    pq.write_table(table, files / "test.parquet")
    recipe = make().model_copy(update={"engine": engine})
    assert "row 2, counted from 0" in mistake(lambda: data_files.check_data(recipe), f"no {column}").where


def test_lists_in_lists_are_one_truth_in_any_order_and_take_no_memory():
    """Quotes in quotes doubled the text with each list: 90 of them took all memory."""
    truths = ["[" * 20 + each + "]" * 20 for each in ('1, {"a": 2, "b": 3}', '{"b": 3.0, "a": 2}, 1.0', "1, 2")]
    one, same, other = map(data_files._canonical, truths)
    assert one == same != other
    assert len(one) < 100


@pytest.mark.parametrize(
    ("chat", "named"),
    [
        ([], "4 prompts without a message"),
        ([{"role": "user", "content": " "}], "4 prompts without a message"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "not the user's"),
        ([{"role": "system", "content": ""}, {"role": "user", "content": "a"}], ""),
        ([{"role": "assistant", "content": ""}, {"role": "tool", "content": "a"}], ""),
        ([{"role": "user", "content": "<image>a"}], "4 prompts with <image> and without images: the model reads"),
    ],
)
def test_prompts_that_ask_nothing_or_show_nothing_are_counted(make, files, chat, named):
    kind = pq.read_schema(files / "test.parquet").field("prompt").type
    table = pq.read_table(files / "test.parquet").drop_columns(["prompt"])
    table = table.append_column("prompt", pa.array([chat] * table.num_rows, kind))
    pq.write_table(table, files / "test.parquet")
    found = [remark for remark in data_files.check_data(make()) if "without" in remark or "whose" in remark]
    assert (len(found), "".join(found).count(named or "none")) == (bool(named), bool(named))
    pq.write_table(table.append_column("image", pa.array(["a.png"] * len(table))), files / "test.parquet")
    found = [remark for remark in data_files.check_data(make()) if "image" in remark]
    assert len(found) == 1, "one remark for one mistake"


def test_rows_of_easyr1_may_have_a_text_for_extra_info(make, files):
    for name in ("train", "test"):
        change(files / f"{name}.parquet", "extra_info", "from a book")
    recipe = make().model_copy(update={"engine": "easyr1"})
    assert data_files.check_data(recipe)
    assert isinstance(reward.trial(recipe), list)
    assert plan.worked_answers(recipe).rows == 0


def test_a_batch_larger_than_the_data(make):
    recipe = make("data.rollout_batch_size=32", "worker.actor.global_batch_size=32")
    assert "GLOBAL_BATCH_SIZE to 16" in mistake(lambda: data_files.check_data(recipe), "data.rollout_batch_size").fix


@pytest.fixture
def counting(make, files):
    """Recipes over training prompts with so many numbers, and a model with a tokenizer."""
    shutil.copytree(ROOT / "recipes/tasks/countdown/tiny", files / "model", dirs_exist_ok=True)

    def build(*numbers: int, changes: tuple[str, ...] = (), **options):
        write_rows(files / "train.parquet", len(numbers), prompt=lambda index: "Use " + "3 " * numbers[index])
        return make("data.max_prompt_length=64", "data.rollout_batch_size=2", *changes, **options)

    return build


def test_prompts_that_are_too_long(counting, files):
    check = data_files.check_prompt_lengths
    assert check(counting(5, 20)) == []
    recipe = counting(5, 6, 7, 200)
    error = mistake(lambda: check(recipe))
    assert "data.max_prompt_length" in error.where
    enough = int(error.fix.split("MAX_PROMPT_LENGTH to ")[1].partition(",")[0])
    assert check(counting(5, 6, 7, 200, changes=(f"data.max_prompt_length={enough}",))) == []
    (remark,) = check(counting(5, 6, 7, 200, changes=("data.filter_overlong_prompts=true",)))
    assert remark.startswith("1 of 4 ")
    mistake(lambda: check(counting(5, 200, 200, changes=("data.filter_overlong_prompts=true",))))  # fills no step
    recipe = counting(4000, 4000)
    manifest_path(files / "train.parquet").unlink()  # a file of verl's own kind is counted as well
    assert "positions" in mistake(lambda: check(recipe)).fix


def test_a_tokenizer_that_cannot_be_loaded_ends_no_run_and_runs_its_code_where_allowed(counting, monkeypatch):
    asked = []

    def refuse(*_, trust_remote_code):
        asked.append(trust_remote_code)
        raise RecipeError("no tokenizer")

    monkeypatch.setattr("recipes.data.lengths.chat_tokenizer", refuse)
    for trusted in (False, True):
        recipe = counting(5, 20, changes=(f"worker.actor.model.trust_remote_code={trusted}",))
        assert len(data_files.check_prompt_lengths(recipe)) == 1
    assert asked == [False, True]
