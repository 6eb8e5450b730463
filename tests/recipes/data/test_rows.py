"""Rows and splits: columns of both engines, manifests, atomic and reproducible files, and what is refused."""

from __future__ import annotations

import errno

import pyarrow.parquet as pq
import pytest

from recipes.data.manifests import Origin, manifest_path, read_manifest
from recipes.data.rows import ROWS_PER_GROUP, make_row, put_in_place, stage_split, staging
from recipes.data.rows import write_split as write
from recipes.errors import RecipeError


def row(index=0, **changes):
    usual = {
        "data_source": "sums",
        "prompt": f"What is {index} + 1?",
        "ground_truth": str(index + 1),
        "ability": "math",
        "extra_info": {"split": "train", "index": index, "parts": [index, 1]},
    }
    return make_row(**(usual | changes))


def rows(count, start=0):
    return (row(index) for index in range(start, start + count))


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": [{"role": "assistant", "content": "Hello"}]},
        {"ground_truth": ""},
        {"ground_truth": 4},
        {"extra_info": {"split": "train"}},
        {"prompt": "<image>", "images": []},
        {"images": [b"png"]},
    ],
)
def test_wrong_rows_are_refused(wrong):
    with pytest.raises(RecipeError):
        row(**wrong)


def test_a_split_reads_back_and_its_manifest_tells_the_truth(tmp_path):
    count = ROWS_PER_GROUP + 7
    path = tmp_path / "new" / "train.parquet"
    manifest, status = write(path, rows(count), Origin(source="sums", seed=5))
    assert status == "written"
    file = pq.ParquetFile(path)
    assert file.num_row_groups == 2
    assert file.read().to_pylist() == list(rows(count))
    stored = read_manifest(path, verify=True)
    assert stored == manifest
    assert (stored.rows, stored.source, stored.seed) == (count, "sums", 5)
    assert str(tmp_path) not in manifest_path(path).read_text(), "no time and no machine"
    assert sorted(p.name for p in path.parent.iterdir()) == ["train.manifest.json", "train.parquet"]


def test_other_data_are_replaced_only_by_force(tmp_path):
    path = tmp_path / "train.parquet"
    write(path, rows(5), Origin(command="make five"))
    assert write(path, rows(5), Origin(command="make five again")).status == "unchanged"
    with pytest.raises(RecipeError, match="holds other data") as error:
        write(path, rows(6))
    assert "make five again" in str(error.value)
    assert read_manifest(path, verify=True).rows == 5
    assert write(path, rows(6), force=True).status == "replaced"
    assert read_manifest(path, verify=True).rows == 6
    assert len(list(tmp_path.iterdir())) == 2


def test_several_splits_are_published_together_or_not_at_all(tmp_path):
    test = tmp_path / "test.parquet"
    write(test, rows(3))
    with staging() as staged:
        staged += [stage_split(tmp_path / f"{name}.parquet", rows(4)) for name in ("train", "test")]
        with pytest.raises(RecipeError, match=r"test\.parquet holds other data"):
            put_in_place(staged)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["test.manifest.json", "test.parquet"]
    assert read_manifest(test, verify=True).rows == 3


def failing(error):
    yield row(0)
    raise error


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([], "no rows"),
        ([row(0), row(1, images=[])], "differ in"),
        ([row(0), row(1, extra_info={"split": "train", "index": "one", "parts": []})], "types"),
        (failing(OSError(errno.ENOSPC, "No space left on device")), "No space left"),
        (failing(KeyboardInterrupt()), None),
    ],
)
def test_a_split_that_cannot_be_written_leaves_what_was_there(tmp_path, bad, message):
    path = tmp_path / "train.parquet"
    write(path, rows(3))
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(RecipeError if message else KeyboardInterrupt, match=message):
        write(path, bad, force=True)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_broken_manifests_are_named(tmp_path):
    path = tmp_path / "train.parquet"
    with pytest.raises(RecipeError, match="no manifest"):
        read_manifest(path)
    write(path, rows(3))
    path.write_bytes(path.read_bytes() + b" ")
    read_manifest(path)
    with pytest.raises(RecipeError, match="not the file"):
        read_manifest(path, verify=True)
    manifest_path(path).write_text("{")
    with pytest.raises(RecipeError, match="JSON"):
        read_manifest(path)
    manifest_path(path).write_text('{"rows": "many", "sha256": ""}')
    with pytest.raises(RecipeError, match="rows: Input should be a valid integer"):
        read_manifest(path)
