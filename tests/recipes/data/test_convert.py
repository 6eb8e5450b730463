"""Conversion: both engines' columns, splits that share no prompt, and work that is done once."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.data.custom import MOST, Survey, Wanted, convert, converted, fingerprint, folder_of
from recipes.data.readers import Place, Record
from recipes.errors import RecipeError

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


def made(wanted: Wanted):
    """Rows of both splits, and both manifests."""
    folder = folder_of(wanted)
    manifests = convert(wanted, folder, "test")
    return [pq.read_table(folder / f"{name}.parquet").to_pylist() for name in ("train", "test")], manifests


def test_a_row_has_what_both_engines_read(tmp_path):
    path = write(tmp_path, [record(0, level=3), record(1, solution="It is 1."), record(2, "math")])
    (train, test), (manifest, _) = made(Wanted((path,), seed=3))
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
    wanted = Wanted((path,), template=template)
    assert converted(folder_of(wanted)) is None
    made(wanted)
    assert [manifest["split"] for manifest in converted(folder_of(wanted))] == ["train", "test"]
    places = {folder_of(wanted), folder_of(Wanted((path,))), folder_of(Wanted((path,), template=template, seed=2))}
    template.write_text("{{ content }}?")
    places.add(folder_of(wanted))
    write(tmp_path, map(record, range(5)))
    places.add(folder_of(wanted))
    assert len(places) == 5
    for broken in ("train.parquet", "test.manifest.json"):
        folder = folder_of(wanted)
        made(wanted)
        (folder / broken).unlink()
        assert converted(folder) is None
    made(wanted)
    (folder / "train.parquet").write_bytes(b"cut")
    assert converted(folder) is None


def test_a_mistake_leaves_nothing_behind(tmp_path):
    path = write(tmp_path, [*map(record, range(8)), {"prompt": "p"}])
    wanted = Wanted((path,))
    with pytest.raises(RecipeError, match="no field ground_truth") as caught:
        made(wanted)
    assert "line 9" in caught.value.where
    assert not list(folder_of(wanted).glob("*"))


def test_one_prompt_alone_cannot_be_split(tmp_path):
    with pytest.raises(RecipeError, match="1 different prompts, too few"):
        made(Wanted((write(tmp_path, [record(), record()]),)))


def test_given_validation_data_is_kept_whole_and_not_trained_on(tmp_path):
    train, val = write(tmp_path, map(record, range(6))), write(tmp_path, map(record, (4, 5, 6, 6)), "val.jsonl")
    (rows, test), (manifest, _) = made(Wanted((train,), (val,)))
    assert [row["problem"] for row in rows] == [f"question {i}" for i in range(4)]
    assert len(test) == 4
    assert manifest["dropped"] == {"also in the validation data": 2}


def test_system_message_and_template(tmp_path):
    own = [{"role": "system", "content": "My own."}, {"role": "user", "content": "question 9"}]
    path = write(tmp_path, [record(0), record(1), {**record(9), "prompt": own}])
    system, template = tmp_path / "s.txt", tmp_path / "t.jinja"
    system.write_text("Think first.\n")
    template.write_text("[{{ data_source }}] {{ content }}\nAnswer briefly.\n")
    (train, test), _ = made(Wanted((path,), system_prompt=system, template=template))
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
        made(Wanted((write(tmp_path, map(record, range(3))),), template=template))


def test_images_by_path_and_by_data_uri(tmp_path):
    (tmp_path / "a.png").write_bytes(PIXEL)
    uri = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
    found = [record(0, images="a.png"), record(1, images=[uri, "a.png"]), record(2)]
    found[1]["prompt"] = "First <image>, then <image>?"
    (train, test), _ = made(Wanted((write(tmp_path, found),)))
    images = {row["problem"]: [image["bytes"] for image in row["images"]] for row in train + test}
    assert images == {"<image>question 0": [PIXEL], "First <image>, then <image>?": [PIXEL, PIXEL], "question 2": []}


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
        made(Wanted((write(tmp_path, [record(0, images=[image]), record(1)]),)))
    assert "line 1" in caught.value.where


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(st.tuples(st.integers(0, 30), st.sampled_from("ab")), min_size=2, max_size=60),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**40),
)
def test_no_prompt_is_on_both_sides_and_every_source_keeps_one_to_train_on(prompts, share, seed):
    found = [Record(Place("f", 1), (("user", str(number)),), "1", source) for number, source in prompts]
    survey = Survey(seed).add(found)
    held_out = survey.validation(share)
    again = Survey(seed).add(reversed(found)).validation(share)
    assert held_out == again
    for source in "ab":
        different = {fingerprint(one, seed) for one in found if one.data_source == source}
        others = {fingerprint(one, seed) for one in found if one.data_source != source}
        chosen_here = different & held_out - others
        assert len(chosen_here) <= max(1, round(share * len(different)))
        if len(different) > 1:
            assert different & held_out
        if different and not different & others:
            assert different - held_out


def test_the_share_is_kept_and_large_sources_have_an_upper_bound():
    def survey(count):
        return Survey(1).add(Record(Place("f", 1), (("user", str(i)),), "1", "a") for i in range(count))

    assert len(survey(200).validation(0.05)) == 10
    assert len(survey(2 * MOST).validation(0.9)) == MOST


def test_ten_thousand_rows_take_a_second_and_not_a_minute(tmp_path):
    path = tmp_path / "many.jsonl"
    path.write_text(
        "".join(f'{{"prompt": "q {i}", "ground_truth": {i}, "data_source": "qa"}}\n' for i in range(10_000))
    )
    wanted = Wanted((path,))
    begin = time.process_time()
    manifests = convert(wanted, folder_of(wanted), "test")
    assert time.process_time() - begin < 6
    assert [manifest["rows"] for manifest in manifests] == [9_500, 500]
