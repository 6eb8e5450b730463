"""The file of finished answers: read back whole, resumed after half a line, one writer, and one key for one meaning."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace

import pytest

from recipes.errors import RecipeError
from recipes.evaluation import cache
from recipes.evaluation.cache import ResponseFile
from recipes.evaluation.sampling import Group, Response, Sampling, clean_text

TEXTS = ("two\nlines", "\u2028\x00\r", clean_text("half a pair \ud800"), "", '{"row": 7,')


@contextlib.contextmanager
def opened(path, *, append=False):
    with contextlib.closing(ResponseFile(path)) as file:
        if append:
            file.open_for_append()
        yield file


def group(row: int) -> Group:
    return Group(row, tuple(Response(text, len(text), "stop", -1.5) for text in TEXTS))


@pytest.fixture
def filled(tmp_path):
    """A file with the rows 4, 0 and 9."""
    path = tmp_path / "responses.jsonl"
    with opened(path, append=True) as file:
        for row in (4, 0, 9):
            file.append(group(row))
    return path


def test_half_a_line_is_cut_off_and_the_rest_is_read_back(filled):
    whole = filled.read_bytes()
    filled.write_bytes(whole + b'{"row": 5, "responses": [{"te')
    with opened(filled, append=True) as file:
        assert 5 not in file
        file.append(group(5))
    assert filled.read_bytes().startswith(whole)
    with opened(filled) as file:
        assert [file.read(row) for row in (9, 5, 0, 4)] == [group(row) for row in (9, 5, 0, 4)]


def test_a_broken_line_in_the_middle_is_named(filled):
    lines = filled.read_text().splitlines(keepends=True)
    filled.write_text(lines[0] + "not a record\n" + lines[2])
    with pytest.raises(RecipeError) as error:
        ResponseFile(filled)
    assert (error.value.where, "line 2" in error.value.what) == (str(filled), True)


def test_writers_do_not_mix_and_see_what_was_written_before_them(filled):
    with opened(filled) as late:
        with opened(filled, append=True) as early:
            early.append(group(7))
            with pytest.raises(RecipeError) as error:
                late.open_for_append()
            assert error.value.where == str(filled)
        late.open_for_append()
        assert 7 in late


def test_whatever_changes_the_answers_changes_the_file():
    def path(model="m", data="d", generator="vllm", **sampling):
        return cache.responses_for(model, data, replace(Sampling(4, 1.0), **sampling), generator).path

    changes = ({"model": "x"}, {"data": "x"}, {"generator": "server"}, {"temperature": 0.7}, {"seed": 1}, {})
    assert len({path(**change) for change in changes}) == len(changes)


def test_a_models_hash_follows_its_files_and_is_not_computed_twice(make_model):
    one, same, other = make_model("a"), make_model("b"), make_model("c", b"other weights")
    first = cache.hash_model(one)
    assert first == cache.hash_model(same) != cache.hash_model(other)
    weights = one / "model.safetensors"
    times = weights.stat().st_mtime_ns
    weights.write_bytes(b"changed")
    os.utime(weights, ns=(times, times))
    assert cache.hash_model(one) == first, "same path, size and time: not read again"
    os.utime(weights, ns=(times + 1, times + 1))
    assert cache.hash_model(one) != first
