"""Rows with images that cannot be trained on are found before the trainer starts, and the way out is named."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from recipes.config import load
from recipes.data.rows import structured
from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.preflight import image_tokens, images

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
    monkeypatch.setattr(images, "ask", lambda _, question, *others: image_tokens.count(question))
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
        return images.check_images(load("number_game", arguments=arguments, environ={"EMBEDDED": "0"}, hardware="gpu"))

    return check


BAD_ROWS = {
    "a PNG that was cut": (PROMPT, [picture(560, 1008)[:-40]]),
    "a JPEG that was cut": (PROMPT, [picture(560, 1008, "JPEG")[:-400]]),
    "no place": ("Which card?", [picture(56, 56)]),
    "no image": (PROMPT, []),
    "too many": ("<image><image>", [picture(56, 56)] * 2),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_is_named(checked, name):
    prompt, held = BAD_ROWS[name]
    with pytest.raises(RecipeError, match="row 2 ") as raised:
        checked([GOOD, GOOD, (prompt, held), GOOD, (PROMPT, [b"x"])])
    assert "train.parquet" in raised.value.where
    assert raised.value.fix


SIZES = [(560, 1008), (720, 1280), (1080, 2400), (300, 200), (61, 61), (2400, 1800), (100, 3000), (28, 28)]


@pytest.fixture(scope="module")
def engines_own_count():
    """Counts tokens as an engine's dataset does, on real pixels."""
    from qwen_vl_utils import fetch_image
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(VISION_MODEL)
    messages = structured([{"role": "user", "content": PROMPT}])
    text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)

    def count(engine: str, image: Image.Image, low: int, high: int) -> int:
        bounds = {}
        if engine == "verl":
            image = fetch_image({"image": image}, image_patch_size=14)
            bounds = {"min_pixels": low, "max_pixels": high}
        else:  # EasyR1 scales into the bounds first, and leaves the processor its own
            for bound, beyond in ((high, 1), (low, -1)):
                area = image.width * image.height
                if (area - bound) * beyond > 0:
                    scale = (bound / area) ** 0.5
                    image = image.resize((int(image.width * scale), int(image.height * scale)))
        return len(processor(text=[text], images=[image], **bounds)["input_ids"][0])

    return count


@pytest.mark.parametrize("engine", ["verl", "easyr1"])
@pytest.mark.parametrize(("low", "high"), [(262_144, 4_194_304), (3136, 200_000)])
def test_counts_are_what_the_engine_makes_of_real_pixels(engines_own_count, engine, low, high):
    messages = json.dumps([{"role": "user", "content": PROMPT}])
    kinds = [image_tokens.Kind(messages, (size,)) for size in SIZES]
    answer = image_tokens.count(image_tokens.Question(str(VISION_MODEL), False, engine, low, high, 99_999, kinds))
    assert answer.tokens == [engines_own_count(engine, Image.new("RGB", size), low, high) for size in SIZES]


def test_a_phones_screenshot_never_fits_and_each_way_out_is_right(checked):
    rows = [SCREENSHOT] * 3
    with pytest.raises(RecipeError) as raised:
        checked(rows)
    assert "data.max_prompt_length" in raised.value.where
    length, pixels = (int(way.split("=")[1]) for way in raised.value.fix.removeprefix("set ").split(" or "))
    for enough in (f"data.max_prompt_length={length}", f"data.max_pixels={pixels}"):
        assert checked(rows, enough) == []
    for less in (f"data.max_prompt_length={length - 1}", f"data.max_pixels={pixels + 784 * 40}"):
        with pytest.raises(RecipeError):
            checked(rows, less)
