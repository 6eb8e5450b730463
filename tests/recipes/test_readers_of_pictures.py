"""Pictures of finished rows: what the check and the evaluation take is what each trainer's own reader opens."""

import ast
import base64
import io
import json
import math
import os
import random
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageDraw

from recipes import pictures
from recipes.data.rows import pictures_mistake
from recipes.evaluation.vllm_engine import Engine

HOME = Path(os.environ.get("EASYR1_HOME", "/nowhere"))
needs_easyr1 = pytest.mark.skipif("EASYR1_HOME" not in os.environ, reason="EASYR1_HOME is not set")


def file_of(picture: Image.Image, form: str = "PNG", **options) -> bytes:
    out = io.BytesIO()
    picture.save(out, form, **options)
    return out.getvalue()


DRAWING = Image.new("RGBA", (112, 56), (0, 0, 0, 0))
ImageDraw.Draw(DRAWING).rectangle((20, 20, 90, 40), fill=(0, 90, 0, 255))
LYING = Image.Exif()
LYING[pictures.ORIENTATION] = 6
CLEAR, PHOTO = file_of(DRAWING), file_of(DRAWING.convert("RGB"), "JPEG", exif=LYING)
URI = f"data:image/png;base64,{base64.b64encode(CLEAR).decode()}"
FORMS = {
    "bytes in a mapping": lambda path: {"bytes": CLEAR},
    "bytes and a name": lambda path: {"bytes": PHOTO, "path": "0.jpg"},
    "a path for bytes": lambda path: {"bytes": None, "path": path},
    "a path": lambda path: path,
    "a file's address": lambda path: f"file://{path}",
    "a data URI": lambda path: URI,
    "bytes": lambda path: CLEAR,
    "verl's mapping": lambda path: {"image": path},
    "verl's mapping of an address": lambda path: {"image_url": f"file://{path}"},
    "verl's mapping without bytes": lambda path: {"bytes": None, "image": path},
    "bytes of no name": lambda path: {"image": CLEAR},
    "a path alone in a mapping": lambda path: {"path": path},
    "nothing": lambda path: {"bytes": None, "path": None},
    "no mapping": lambda path: None,
    "a file that is not there": lambda path: "none.png",
}


def _rows(path, form: str, is_feature: bool):
    """The rows as `datasets` reads them, and the picture as the file has it."""
    import datasets

    shown = FORMS[form](str(path.parent / "a.jpg"))
    (path.parent / "a.jpg").write_bytes(PHOTO)
    table = pa.table({"prompt": [[{"role": "user", "content": "<image>?"}]]})
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())]) if is_feature else None
    table = table.append_column("images", pa.array([[shown]], pa.list_(kind) if kind else None))
    if is_feature:
        features = datasets.Features.from_arrow_schema(table.schema)
        features["images"] = [datasets.Image()]
        table = table.cast(features.arrow_schema)
    pq.write_table(table, path)
    read = datasets.load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(path.parent / "c"))
    return read, pq.read_table(path)["images"][0].as_py()[0]


def by_verl(example) -> Image.Image:
    """The picture as verl's data set and its agent loop open it."""
    from qwen_vl_utils import process_vision_info
    from verl.utils.dataset.rl_dataset import RLHFDataset

    own = SimpleNamespace(image_key="images", video_key="videos", audio_key="audios", processor=object())
    (shown,), _ = process_vision_info(RLHFDataset._build_messages(own, example, key="prompt"))
    return shown


def by_easyr1(example, least: int | None = None, most: int | None = None) -> Image.Image:
    """The picture as EasyR1's own function makes it."""
    tree = ast.parse((HOME / "verl/utils/dataset.py").read_text())
    (own,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "process_image")
    own.returns, own.args.args = None, [ast.arg(argument.arg) for argument in own.args.args]
    names = {"Image": Image, "BytesIO": io.BytesIO, "math": math}
    exec(compile(ast.fix_missing_locations(ast.Module([own], [])), "dataset.py", "exec"), names)
    return names["process_image"](example["images"][0], least, most)


CASES = [
    pytest.param(form, engine, is_feature, marks=[needs_easyr1] * (engine == "easyr1"))
    for engine in ("verl", "easyr1")
    for form in FORMS
    for is_feature in (False, True)[: 1 + isinstance(FORMS[form](""), dict | None)]
]
"""Hugging Face's Image is a mapping."""


@pytest.mark.parametrize(("form", "engine", "is_feature"), CASES)
def test_a_form_is_taken_as_the_trainers_own_reader_takes_it(tmp_path, form, engine, is_feature):
    path, of_verl = tmp_path / "rows.parquet", engine == "verl"
    rows, held = _rows(path, form, is_feature)
    try:
        expected = by_verl(rows[0]) if of_verl else by_easyr1(rows[0])
    except Exception:
        expected = None
    by_datasets = pictures.opened_by_datasets(path, "images")
    assert by_datasets == is_feature
    if expected is None:
        with pytest.raises(ValueError) as refused:
            pictures.trained(held, engine, by_datasets=by_datasets)
        assert len(str(refused.value)) < 200
        return
    data = pictures.trained(held, engine, by_datasets=by_datasets)
    shown = Engine(of_easyr1=not of_verl).shown(data)
    assert (shown.size, shown.tobytes()) == (expected.size, expected.tobytes())


@needs_easyr1
@pytest.mark.parametrize("seed", range(40))
def test_a_picture_is_resized_as_easyr1_resizes_it(seed):
    """An evaluation resized as verl does, and 15 to 48 of 64 greedy answers were others."""
    rng = random.Random(seed)
    width, height = rng.randint(1, 900), rng.randint(1, 900)
    least, most = (rng.choice([None, rng.randint(900, 400_000)]) for _ in range(2))
    if seed % 4 == 0:  # the first of two factors may fall below the lower bound by rounding
        least = most = rng.randint(900, 400_000)
    mode = rng.choice(["RGB", "RGBA", "L", "LA", "P"])
    noise = Image.effect_noise((width, height), 90)
    drawing = Image.merge("RGB", [noise, noise.rotate(180), noise]).convert(mode)
    if mode.endswith("A"):
        drawing.putalpha(noise)
    data = file_of(drawing)
    bounds = {"min_pixels": least, "max_pixels": most}
    engine = Engine(of_easyr1=True, processor={name: value for name, value in bounds.items() if value is not None})
    expected, shown = by_easyr1({"images": [{"bytes": data}]}, least, most), engine.shown(data)
    assert (shown.size, shown.mode, shown.tobytes()) == (expected.size, expected.mode, expected.tobytes())
    assert engine.size(pictures.open_image(data), 14) == (expected.height, expected.width)


def test_what_shows_no_picture_is_no_column_of_them(tmp_path):
    """Columns that text rows have, and lists of one length, are taken; a path alone in a row is none."""
    struct = pa.list_(pa.struct([("bytes", pa.binary())]), 1)
    columns = [pa.array(["", None]), pa.array([None, None], pa.float64()), pa.array([[{"bytes": CLEAR}]] * 2, struct)]
    for number, column in enumerate([*columns, pa.array(["a.png", ""])]):
        pq.write_table(pa.table({"images": column, "videos": [3, 4]}), tmp_path / f"{number}.parquet")
        found = pictures_mistake(tmp_path / f"{number}.parquet", "images", "videos")
        assert bool(found) == (number == len(columns))


def test_a_file_of_datasets_is_opened_again_only_where_it_shows_otherwise(tmp_path):
    upright = Image.Exif()
    upright[pictures.ORIENTATION] = 1
    held = file_of(DRAWING.convert("RGB"), "JPEG", exif=upright)
    assert pictures.trained({"bytes": held}, "verl", by_datasets=True) is held
    features = {"images": {"feature": {"_type": "Image"}, "_type": "List"}, "other": {"_type": "Novel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(pa.table({"images": [[]], "other": [1]}).replace_schema_metadata(metadata), tmp_path / "a.parquet")
    assert pictures.opened_by_datasets(tmp_path / "a.parquet", "images")
    assert not pictures.opened_by_datasets(tmp_path / "a.parquet", "other")
