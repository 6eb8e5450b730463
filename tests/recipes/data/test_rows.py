"""Rows and splits: columns of both engines, manifests, atomic and reproducible files, and what is refused."""

import errno
import os
import sys

import pyarrow.parquet as pq
import pytest

from recipes.data.rows import ROWS_PER_GROUP, Split, find_manifest, make_row, manifest_path, schema_of, write_data
from recipes.data.rows import write_split as write
from recipes.errors import RecipeError
from recipes.files import sha256
from tests.mistakes import mistake


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


def test_the_content_alone_decides_an_id_and_repeated_rows_are_numbered(tmp_path):
    assert row(1)["id"] == row(1)["extra_info"]["id"] == "b6380bd69af5687e782a"
    others = [row(prompt="What is 0 + 1"), row(ground_truth="3"), row(data_source="x"), row(id="own")]
    others += [row(prompt=[{"role": "system", "content": "x"}, *row()["prompt"]])]
    others += [row(prompt="<image>", images=[image]) for image in (b"a", b"b")]
    assert len({each["id"] for each in (*others, row())}) == 8
    write(tmp_path / "train.parquet", [row(0), row(1), row(0), row(0)])
    ids, extra = (pq.read_table(tmp_path / "train.parquet").column(name).to_pylist() for name in ("id", "extra_info"))
    first, second = row(0)["id"], row(1)["id"]
    assert ids == [first, second, f"{first}-2", f"{first}-3"] == [each["id"] for each in extra]


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": [{"role": "assistant", "content": "Hello"}]},
        {"prompt": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]},
        {"prompt": [{"role": role, "content": "Hi"} for role in ("user", "user")]},
        {"prompt": "<image>", "images": []},
        {"images": [b"png"]},
    ],
)
def test_wrong_rows_are_refused(wrong):
    mistake(lambda: row(**wrong))


def test_a_split_reads_back_and_its_manifest_tells_the_truth(tmp_path):
    count = ROWS_PER_GROUP + 7
    path = tmp_path / "new" / "train.parquet"
    manifest = write(path, rows(count), {"source": "sums", "seed": 5})
    file = pq.ParquetFile(path)
    assert file.num_row_groups == 2
    assert file.read().to_pylist() == list(rows(count))
    stored = find_manifest(path)
    assert stored == manifest
    assert whole(path) == count
    assert (stored.rows, stored.source, stored.seed) == (count, "sums", 5)
    assert str(tmp_path) not in manifest_path(path).read_text(), "no time and no machine"
    assert sorted(p.name for p in path.parent.iterdir()) == ["train.manifest.json", "train.parquet"]


def data(count):
    return [Split(name, rows(count), {"command": f"make {count}"}) for name in ("train", "test")]


def whole(file):
    """The rows of a file that is the one of its manifest."""
    manifest = find_manifest(file)
    assert manifest.sha256 == sha256(file)
    return manifest.rows


def contents(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_of_data_is_written_unchanged_or_replaced_by_force(tmp_path):
    folder = tmp_path / "data"
    assert write_data(folder, data(3))[1] == "written"
    (folder / "train.tokens-0123456789ab.json").touch()
    assert write_data(folder, data(3))[1] == "unchanged"
    mistake(lambda: write_data(folder, data(4)), "make 3")
    assert whole(folder / "train.parquet") == 3
    manifests, status = write_data(folder, data(4), force=True)
    assert (status, [each.rows for each in manifests]) == ("replaced", [4, 4])
    assert contents(folder) == ["test.manifest.json", "test.parquet", "train.manifest.json", "train.parquet"]
    assert contents(tmp_path) == ["data"]
    (folder / "thesis.tex").write_text("years of work")
    mistake(lambda: write_data(folder, data(3), force=True), "thesis.tex")


def test_a_failure_in_the_second_split_leaves_both_as_they_were(tmp_path):
    folder = tmp_path / "data"
    for held in ([], [3, 3]):
        with pytest.raises(KeyboardInterrupt):
            write_data(folder, [data(4)[0], Split("test", failing(KeyboardInterrupt()))], force=True)
        assert [whole(file) for file in folder.glob("*.parquet")] == held
        write_data(folder, data(3), force=True)


def write_until(folder, renames):
    """Write other data in a process that is killed before its `renames`-th change of a name; return its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    seen = []

    def kill(event, arguments):
        seen.extend([event] * (event == "os.rename"))
        if len(seen) == renames:
            os._exit(9)

    made = data(4)
    sys.addaudithook(kill)
    write_data(folder, made, force=True)
    os._exit(0)


def test_a_process_killed_while_it_writes_leaves_no_mix_of_two_data_sets(tmp_path):
    """It is killed before every change of a name on the disk in turn: both are old, both new, or none is there."""
    step, code, found = 0, 9, []
    while code and step < 30:
        step += 1
        folder = tmp_path / str(step)
        write_data(folder, data(3))
        code = write_until(folder, step)
        files = [folder / f"{name}.parquet" for name in ("train", "test")]
        found = [whole(file) if file.exists() else None for file in files]
        assert found in ([3, 3], [4, 4], [None, None])
    assert (found, code, step > 4) == ([4, 4], 0, True)


def failing(error):
    yield row(0)
    raise error


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ([], RecipeError),
        ([row(0), row(1, images=[])], RecipeError),
        ([row(0), row(1, extra_info={"split": "train", "index": "one", "parts": []})], RecipeError),
        (failing(OSError(errno.ENOSPC, "No space left on device")), RecipeError),
        (failing(KeyboardInterrupt()), KeyboardInterrupt),
    ],
)
def test_a_split_that_cannot_be_written_leaves_what_was_there(tmp_path, bad, error):
    path = tmp_path / "train.parquet"
    write(path, rows(3))
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(error):
        write(path, bad)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_objects_without_keys_are_left_out_at_any_depth():
    schema = schema_of([{"a": {}, "b": {"c": {}, "d": 1}, "e": [{}], "f": []}], with_images=False)
    assert [str(field.type) for field in schema] == ["struct<d: int64>", "list<item: null>"]
