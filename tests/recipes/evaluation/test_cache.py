"""Responses: settings, the file that keeps them, what one key stands for, and hashes that are not computed twice."""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recipes.errors import RecipeError
from recipes.evaluation import cache
from recipes.evaluation.cache import ResponseFile
from recipes.evaluation.sampling import Group, Response, Sampling, clean_text

SAMPLING = Sampling(n=4, temperature=1.0, top_p=1.0, max_tokens=64, seed=0)


@contextlib.contextmanager
def opened(path, *, append=False):
    with contextlib.closing(ResponseFile(path)) as file:
        if append:
            file.open_for_append()
        yield file


def group(row: int, *texts: str) -> Group:
    return Group(row, tuple(Response(text, len(text), "stop", -1.5) for text in texts or ("a", "b")))


@pytest.fixture
def filled(tmp_path):
    """A file with the rows 4, 0 and 9."""
    path = tmp_path / "responses.jsonl"
    with opened(path, append=True) as file:
        for row in (4, 0, 9):
            file.append(group(row, f"one {row}", "two\nlines"))
    return path


@given(texts=st.lists(st.lists(st.text(max_size=60), min_size=1, max_size=3), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_read_back_in_any_order(tmp_path, texts):
    path = tmp_path / "any.jsonl"
    path.unlink(missing_ok=True)
    groups = [group(row, *map(clean_text, each)) for row, each in enumerate(texts)]
    with opened(path, append=True) as file:
        for each in groups:
            file.append(each)
    with opened(path) as file:
        assert len(groups) not in file
        assert [file.read(each.row) for each in reversed(groups)] == groups[::-1]


def test_half_a_line_is_cut_off_and_generation_resumes(filled):
    whole = filled.read_bytes()
    filled.write_bytes(whole + b'{"row": 5, "responses": [{"te')
    with opened(filled, append=True) as file:
        assert 5 not in file
        file.append(group(5))
    assert filled.read_bytes().startswith(whole)
    with opened(filled) as file:
        assert file.read(5) == group(5)


def test_a_broken_line_in_the_middle_is_named(filled):
    lines = filled.read_text().splitlines(keepends=True)
    filled.write_text(lines[0] + "not a record\n" + lines[2])
    with pytest.raises(RecipeError, match="line 2") as error:
        ResponseFile(filled)
    assert "delete" in error.value.fix


def test_writers_do_not_mix_and_see_what_was_written_before_them(filled):
    with opened(filled) as late:
        with opened(filled, append=True) as early:
            early.append(group(7))
            with pytest.raises(RecipeError, match="another evaluation"):
                late.open_for_append()
        late.open_for_append()
        assert 7 in late


@pytest.mark.parametrize(
    "change",
    [{"model": "other"}, {"data": "other"}, {"generator": "server"}, {"temperature": 0.7}, {"seed": 1}],
    ids=str,
)
def test_whatever_changes_the_answers_changes_the_file(artifacts, change):
    def path(model="m", data="d", generator="vllm", **sampling):
        return cache.responses_for(model, data, replace(SAMPLING, **sampling), generator).path

    assert path().is_relative_to(artifacts)
    assert path(**change) != path()


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
    assert cache.hash_file(weights) == hashlib.sha256(b"changed").hexdigest()
    assert cache.hash_model(one) != first
