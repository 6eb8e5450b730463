"""What one key stands for, and hashes that are not computed twice."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace

import pytest

from recipes.errors import RecipeError
from recipes.evaluation import cache
from recipes.evaluation.sampling import Sampling

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
