"""Responses: settings, the file that keeps them, what one key stands for, and hashes that are not computed twice."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recipes.errors import RecipeError
from recipes.evaluation import cache
from recipes.evaluation.cache import ResponseFile
from recipes.evaluation.completions import JsonLines
from recipes.evaluation.sampling import Group, Response, Sampling, clean_text


def opened(path):
    return contextlib.closing(ResponseFile(path))


def group(row: int, *texts: str) -> Group:
    return Group(row, tuple(Response(text, len(text), "stop", -1.5) for text in texts or ("a", "b")))


@pytest.fixture
def filled(tmp_path):
    path = tmp_path / "responses.jsonl"
    with opened(path) as file:
        file.open_for_append()
        for row in (4, 0, 9):
            file.append(group(row, f"one {row}", "two\nlines"))
    return path


def test_groups_are_read_back_in_any_order(filled):
    with opened(filled) as file:
        assert len(file) == 3
        assert 4 in file
        assert 5 not in file
        assert [file.read(row).row for row in (9, 4, 0)] == [9, 4, 0]
        assert file.read(9) == group(9, "one 9", "two\nlines")


@given(texts=st.lists(st.text(max_size=60), min_size=1, max_size=3))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_survives(tmp_path, texts):
    path = tmp_path / "any.jsonl"
    path.unlink(missing_ok=True)
    with opened(path) as file:
        file.open_for_append()
        file.append(group(1, *map(clean_text, texts)))
    with opened(path) as file:
        assert [response.text for response in file.read(1).responses] == [clean_text(text) for text in texts]


def test_lone_surrogates_become_text():
    assert clean_text("a\ud800b") == "a\\ud800b"
    assert clean_text("é 🙂") == "é 🙂"


def test_half_a_line_is_cut_off_and_generation_resumes(filled):
    whole = filled.read_bytes()
    filled.write_bytes(whole + b'{"row": 5, "responses": [{"te')
    with opened(filled) as file:
        assert len(file) == 3
        file.open_for_append()
        file.append(group(5))
    assert filled.read_bytes().startswith(whole)
    with opened(filled) as file:
        assert len(file) == 4
        assert file.read(5) == group(5)


def test_a_broken_line_in_the_middle_is_named(filled):
    lines = filled.read_text().splitlines(keepends=True)
    filled.write_text(lines[0] + "not a record\n" + lines[2])
    with pytest.raises(RecipeError, match="line 2") as found:
        ResponseFile(filled)
    assert "delete" in found.value.fix


def test_two_writers_do_not_mix(filled):
    with opened(filled) as one, opened(filled) as other:
        one.open_for_append()
        with pytest.raises(RecipeError, match="another evaluation"):
            other.open_for_append()
    with opened(filled) as later:
        later.open_for_append()


def test_a_writer_sees_what_another_wrote_before_it(filled):
    with opened(filled) as late:
        with opened(filled) as early:
            early.open_for_append()
            early.append(group(7))
        late.open_for_append()
        assert 7 in late


@pytest.mark.parametrize("logprob", [float("nan"), float("inf"), float("-inf")])
def test_log_probabilities_must_be_finite(logprob):
    with pytest.raises(RecipeError, match="log-probability of response 1 to row 3"):
        Group(3, (Response("", 1, "stop", -1.0), Response("", 1, "stop", logprob))).check(2)


def test_a_group_must_be_complete():
    with pytest.raises(RecipeError, match="1 responses instead of 2"):
        Group(3, (Response("", 1, "stop", None),)).check(2)


def test_json_lines_refuse_nan(tmp_path):
    file = JsonLines(tmp_path / "deep" / "x.jsonl")
    file.write({"text": "é\n"})
    with pytest.raises(ValueError, match="JSON compliant"):
        file.write({"value": float("nan")})
    file.close()
    assert json.loads((tmp_path / "deep" / "x.jsonl").read_text()) == {"text": "é\n"}


SAMPLING = Sampling(n=4, temperature=1.0, top_p=1.0, max_tokens=64, seed=0)


def path(model="m", data="d", sampling=SAMPLING, generator="vllm"):
    return cache.responses_for(model, data, sampling, generator).path


def test_one_key_one_file(artifacts):
    assert path() == path()
    assert path().is_relative_to(artifacts)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"data": "other"},
        {"generator": "server"},
        *(
            {"sampling": replace(SAMPLING, **{name: value})}
            for name, value in [("n", 8), ("temperature", 0.7), ("top_p", 0.9), ("max_tokens", 65), ("seed", 1)]
        ),
    ],
    ids=str,
)
def test_whatever_changes_the_answers_changes_the_file(change):
    assert path() != path(**change)


def test_a_models_hash_follows_its_files(make_model):
    one, same, other = make_model("a"), make_model("b"), make_model("c", b"other weights")
    assert cache.hash_model(one) == cache.hash_model(same)
    assert cache.hash_model(one) != cache.hash_model(other)
    before = cache.hash_model(one)
    (one / "tokenizer.json").write_text("{}")
    assert cache.hash_model(one) != before


def test_a_file_is_hashed_once_until_it_changes(tmp_path):
    file = tmp_path / "weights"
    file.write_bytes(b"12345678")
    first = cache.hash_file(file)
    assert first == hashlib.sha256(b"12345678").hexdigest()
    times = file.stat().st_mtime_ns
    file.write_bytes(b"87654321")
    os.utime(file, ns=(times, times))
    assert cache.hash_file(file) == first, "same path, size and time: not read again"
    os.utime(file, ns=(times + 1, times + 1))
    assert cache.hash_file(file) == hashlib.sha256(b"87654321").hexdigest()


def test_seeds_differ_by_row_and_not_by_company():
    seeds = [SAMPLING.request_seed(row) for row in range(2000)]
    assert len(set(seeds)) == 2000
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert replace(SAMPLING, seed=1).request_seed(0) != seeds[0]


@pytest.mark.parametrize(
    "change",
    [
        {"n": 0},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"max_tokens": 0},
        {"temperature": 0.0},
    ],
    ids=str,
)
def test_sampling_that_makes_no_sense_is_refused(change):
    with pytest.raises(RecipeError):
        replace(SAMPLING, **change)
