"""Rows with images that cannot be trained on are found before the trainer starts, and the way out is named."""

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from recipes.config import load
from recipes.paths import ROOT
from recipes.preflight import data_files
from tests.mistakes import mistake

PROMPT = "<image>Which card is right?"
VISION_MODEL = ROOT / "recipes/tasks/number_game/tiny"


def picture(width: int, height: int, form: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(out, form)
    return out.getvalue()


GOOD = (PROMPT, [picture(560, 1008)])
SCREENSHOT = (PROMPT, [picture(720, 1280)])


def write(path: Path, rows: list[tuple[str, list]]) -> None:
    """A file of both engines' columns, with rows that `make_row` would refuse."""
    entries = [[{"bytes": image} for image in found] for _, found in rows]
    image_type = pa.struct([("bytes", pa.binary())])
    columns = {
        "data_source": ["number_game"] * len(rows),
        "prompt": [[{"role": "user", "content": prompt}] for prompt, _ in rows],
        "reward_model": [{"style": "rule", "ground_truth": "1"}] * len(rows),
        "problem": [prompt for prompt, _ in rows],
        "answer": ["1"] * len(rows),
    }
    pq.write_table(pa.table(columns).append_column("images", pa.array(entries, pa.list_(image_type))), path)


@pytest.fixture
def checked(tmp_path, monkeypatch):
    """Checks the number game's recipe over rows of the test's own; tokens are counted in this process."""
    monkeypatch.setattr(data_files, "ask", lambda function, *arguments, **texts: function(*arguments))
    write(tmp_path / "test.parquet", [GOOD])

    def check(rows, *changes):
        write(tmp_path / "train.parquet", rows)
        keys = {
            "data.train_files": tmp_path / "train.parquet",
            "data.val_files": tmp_path / "test.parquet",
            "worker.actor.model.model_path": VISION_MODEL,
            "data.rollout_batch_size": 1,
            **dict(change.split("=", 1) for change in changes),
        }
        arguments = [f"{key}={value}" for key, value in keys.items()]
        return data_files.check_images(load("number_game", arguments=arguments, environ={"TINY": "0"}, hardware="gpu"))

    return check


BAD_ROWS = {
    "a PNG that was cut": (PROMPT, [picture(560, 1008)[:-40]]),
    "a JPEG that was cut": (PROMPT, [picture(560, 1008, "JPEG")[:-400]]),
    "no place": ("Which card?", [picture(56, 56)]),
    "no image": (PROMPT, []),
    "a strip": (PROMPT, [picture(4, 900)]),
    "a mark of the model's": ("<|vision_start|>" + PROMPT, [picture(56, 56)]),
    "a mark of verl's": (PROMPT + "<video>", [picture(56, 56)]),
    "too many": ("<image><image>", [picture(56, 56)] * 2),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_is_named(checked, name):
    prompt, held = BAD_ROWS[name]
    error = mistake(lambda: checked([GOOD, GOOD, (prompt, held), GOOD, (PROMPT, [b"x"])]), "row 2 ")
    assert "train.parquet" in error.where


def test_the_check_takes_the_forms_that_the_trainer_opens(checked, tmp_path):
    """A mapping without bytes passed, and verl opened nothing."""
    (tmp_path / "a.png").write_bytes(picture(560, 1008))

    def check(column, *changes):
        write(tmp_path / "train.parquet", [GOOD])
        table = pq.read_table(tmp_path / "train.parquet").drop_columns("images")
        path = tmp_path / "other.parquet"
        pq.write_table(table.append_column("images", pa.array([column])), path)
        return checked([GOOD], f"data.train_files={path}", *changes)

    assert check([str(tmp_path / "a.png")]) == []
    assert check(["a.png"], "engine=easyr1", f"data.image_dir={tmp_path}") == []
    mistake(lambda: check(["a.png"], "engine=easyr1"), "No such file")
    for form in ({"bytes": None, "path": "a.png"}, {"path": "a.png"}, {"bytes": None}):
        assert "'bytes'" in mistake(lambda form=form: check([form]), "row 0 ").what
    error = mistake(lambda: check([{"image": str(tmp_path / "a.png"), "max_pixels": 784}]), "row 0 ")
    assert "max_pixels of one picture" in error.what
    assert "an empty list" in mistake(lambda: check(None, "engine=easyr1")).fix
    write(tmp_path / "train.parquet", [GOOD])
    table = pq.read_table(tmp_path / "train.parquet").drop_columns("images")
    for alone in ("a.png", {"bytes": b"", "path": ""}, 3):
        pq.write_table(table.append_column("images", pa.array([alone])), tmp_path / "alone.parquet")
        keys = [f"data.train_files={tmp_path / 'alone.parquet'}", f"data.val_files={tmp_path / 'test.parquet'}"]
        recipe = load("number_game", arguments=[*keys, "data.rollout_batch_size=1"], environ={}, hardware="gpu")
        mistake(lambda recipe=recipe: data_files.check_data(recipe), "a list of pictures")


def test_a_column_of_pictures_that_is_not_there_is_named(tmp_path):
    write(tmp_path / "rows.parquet", [("Which card?", [])])
    keys = [f"data.{part}_files={tmp_path / 'rows.parquet'}" for part in ("train", "val")]

    def check(*changes):
        words = [*keys, "data.rollout_batch_size=1", *changes]
        return data_files.check_data(load("number_game", arguments=words, environ={}, hardware="gpu"))

    check()
    for engine in ("verl", "easyr1"):
        error = mistake(lambda engine=engine: check(f"engine={engine}", "data.image_key=photos"), "data.image_key")
        assert "no column photos (its columns are data_source, prompt, " in error.what
    without = pq.read_table(tmp_path / "rows.parquet").drop_columns("images")
    pq.write_table(without, tmp_path / "rows.parquet")
    check("data.image_key=images")  # as EasyR1's own files say it, for texts too


@pytest.mark.parametrize("engine", ["verl", "easyr1"])
def test_videos_are_refused_and_their_marks_answered(tmp_path, engine):
    rows = [("What does the tag <video> do?", []), ("Which card?", [])]

    def check(*changes, **columns):
        write(path := tmp_path / "rows.parquet", rows)
        table = pq.read_table(path)
        for name, values in columns.items():
            table = table.append_column(name, pa.array(values))
        pq.write_table(table, path)
        keys = [f"engine={engine}", *(f"data.{part}_files={path}" for part in ("train", "val"))]
        words = [*keys, "data.rollout_batch_size=1", *changes]
        return data_files.check_data(load("number_game", arguments=words, environ={}, hardware="gpu"))

    assert any(said.startswith("2 prompts with <video> or <audio>") for said in check())
    for name in ("videos", "audios"):
        assert f"row 1: {name} has a value" in mistake(lambda name=name: check(**{name: [[], ["a.mp4"]]})).what
    assert "row 0: clips" in mistake(lambda: check("data.video_key=clips", clips=["a.mp4", None])).what
    mistake(lambda: check("data.video_key=clips"), "no column clips")
    check("data.video_key=videos", videos=[[], None])


def test_prompts_without_room_are_refused_or_dropped_and_the_ways_out_are_right(checked):
    """A phone's screenshot never fits, and beside shorter rows it is dropped."""
    error = mistake(lambda: checked([SCREENSHOT] * 3))
    assert "data.max_prompt_length" in error.where
    length = int(error.fix.split("=")[1].partition(",")[0])
    assert 26 * 46 < length < 26 * 46 + 60, "28 x 28 pixels a token, and the text's"
    assert "MAX_PIXELS" in error.fix
    for enough in (f"data.max_prompt_length={length}", "data.max_pixels=300000"):
        assert checked([SCREENSHOT] * 3, enough) == []
    (dropped,) = checked([GOOD, SCREENSHOT, GOOD, SCREENSHOT])
    assert "row 1 " in dropped
    assert "2 rows " in dropped
    (dropped,) = checked([GOOD, (PROMPT + " Which card?" * 1000, [picture(56, 56)])])
    assert "row 1 " in dropped, "a long text beside a small image"
    (dropped,) = checked([(PROMPT + "\u54ea" * 1000, [picture(560, 560)]), (PROMPT, [picture(840, 840)])])
    assert "row 0 " in dropped, "a Chinese character has more tokens than a Latin letter"
    mistake(lambda: checked([GOOD, SCREENSHOT, GOOD], "data.filter_overlong_prompts=false"))


def test_bounds_of_images_need_a_row_with_one(checked, tmp_path):
    write(tmp_path / "test.parquet", [("Which card?", [])])
    rows = [("Which card?", [])]
    assert checked(rows) == []
    assert "no row has an image" in mistake(lambda: checked(rows, "data.min_pixels=784"), "data.min_pixels").what


def test_tokens_of_easyr1s_pictures_are_those_of_its_own_sizes(checked, tmp_path):
    """It enlarges 56 x 56 to 512 x 512, of which the model's processor makes its own largest, 448 x 448; verl hands the
    bounds over, and gets 532 x 532."""
    small = [(PROMPT, [picture(56, 56)])] * 3
    write(tmp_path / "test.parquet", small)
    lengths = []
    for engine in ("verl", "easyr1"):
        error = mistake(lambda engine=engine: checked(small, f"engine={engine}", "data.max_prompt_length=100"))
        lengths.append(int(error.fix.split("=")[1].partition(",")[0]))
    assert lengths[0] - lengths[1] == 19 * 19 - 16 * 16


def test_easyr1_needs_a_processor_where_a_column_of_images_is_empty(checked, tmp_path):
    rows, text_model = [("Which card?", [])], f"worker.actor.model.model_path={ROOT / 'recipes/tasks/gsm8k/tiny'}"
    write(tmp_path / "test.parquet", rows)
    assert checked(rows, text_model) == checked(rows, "engine=easyr1") == []
    mistake(lambda: checked(rows, "engine=easyr1", text_model), "a column images, which may be left out")


def test_small_images_are_enlarged_to_the_lower_bound(checked, tmp_path):
    small = [(PROMPT, [picture(56, 56)])] * 3
    write(tmp_path / "test.parquet", small)
    assert "MIN_PIXELS" in mistake(lambda: checked(small, "data.max_prompt_length=100")).fix
    assert checked(small, "data.max_prompt_length=100", "data.min_pixels=784") == []
    mistake(lambda: checked(small, "data.max_pixels=50000"), "data.min_pixels")
