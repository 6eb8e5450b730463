"""Ids of rows: one each, the same in every build, the user's own where there are some."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.data.custom import Conversion, convert
from recipes.data.rows import UniqueIds, make_row
from recipes.errors import RecipeError


def row(prompt="What is 1 + 1?", truth="2", **more):
    info = {"split": "test", "index": 0}
    return make_row(data_source="sums", prompt=prompt, ground_truth=truth, ability="math", extra_info=info, **more)


def test_the_content_alone_decides():
    assert row()["id"] == row()["id"] == row()["extra_info"]["id"] == "b6380bd69af5687e782a"
    others = [row("What is 1 + 1"), row(truth="3"), row([{"role": "system", "content": "x"}, *row()["prompt"]])]
    others += [row("<image>", images=[b"a"]), row("<image>", images=[b"b"])]
    assert len({each["id"] for each in (*others, row())}) == 6


@given(st.lists(st.sampled_from(["a", "a-2", "a-3", "b"]), max_size=40))
def test_every_row_gets_an_id_of_its_own_and_the_first_keeps_it(names):
    ids = UniqueIds()
    given_ids = [ids.unique(name) for name in names]
    assert len(set(given_ids)) == len(names)
    assert all(made.startswith(name) for made, name in zip(given_ids, names, strict=True))


def converted(folder, records, **settings):
    file = folder / "own.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in records))
    target = folder / "made"
    convert(Conversion((file,), **settings), target, "test")
    return [row for name in ("train", "test") for row in pq.read_table(target / f"{name}.parquet").to_pylist()]


def record(index, **fields):
    return {"prompt": f"question {index}", "ground_truth": str(index), "data_source": "qa", **fields}


def test_a_users_file_keeps_its_ids_and_repeated_ones_are_refused_with_their_lines(tmp_path):
    rows = converted(tmp_path, [record(0, id="first"), record(1, id=17), record(2), record(3, id="")])
    ids = {row["extra_info"]["line"]: row["id"] for row in rows}
    assert (ids[1], ids[2]) == ("first", "17")
    assert len({*ids.values()}) == 4
    with pytest.raises(RecipeError) as error:
        converted(tmp_path, [record(0, id=1), record(1, id="1"), record(2, id=2)])
    assert all(place in str(error.value) for place in ("own.jsonl, line 1", "line 2"))
    with pytest.raises(RecipeError):
        converted(tmp_path, [record(0, id=[1]), record(1)])


def test_another_template_leaves_the_ids(tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text("{{ content }} Answer briefly.")
    records = [record(index) for index in range(4)]
    plain, wrapped = (
        {row["id"]: row["answer"] for row in converted(tmp_path, records, template=each)} for each in (None, template)
    )
    assert plain == wrapped
