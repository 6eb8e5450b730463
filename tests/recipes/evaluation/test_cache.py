"""The file of finished answers: read back whole, resumed after half a line, one key for one meaning."""

import os
from dataclasses import replace

import pytest

from recipes.evaluation import cache
from recipes.evaluation.cache import ResponseFile
from recipes.evaluation.questions import Question
from recipes.responses.measures import Group, Response, Sampling
from tests.mistakes import mistake

TEXTS = ("two\nlines", "\u2028\x00\r", "", '{"row": 7,')


def group(row: int) -> Group:
    return Group(row, tuple(Response(text, len(text), False, -1.5) for text in TEXTS))


def missing(file: ResponseFile, *rows: int) -> list[int]:
    return [question.row for question in file.missing([Question(row, [], "", "") for row in rows])]


@pytest.fixture
def filled(tmp_path):
    """A file with the rows 4, 0 and 9."""
    file = ResponseFile(tmp_path / "responses.jsonl")
    with file.for_writing():
        for row in (4, 0, 9):
            file.append(group(row))
    return file.path


@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        (lambda lines: [*lines, b'{"row": 5, "responses": [{"te'], []),
        (lambda lines: [lines[0], b"not a record\n", b"7\n", *lines[2:]], [0]),
        (lambda lines: [*lines[:-1], lines[-1][:-1]], [9]),  # its writer may still end it
    ],
)
def test_a_line_that_is_not_whole_is_missing_and_is_written_again(filled, damage, lost):
    damaged = b"".join(damage(filled.read_bytes().splitlines(keepends=True)))
    filled.write_bytes(damaged)
    file = ResponseFile(filled)
    assert (missing(file, 4, 0, 9, 5), filled.read_bytes()) == ([*lost, 5], damaged)
    with file.for_writing():
        for row in (*lost, 5):
            file.append(group(row))
    assert [ResponseFile(filled).read(row) for row in (9, 5, 0, 4)] == [group(row) for row in (9, 5, 0, 4)]


def test_one_writes_at_a_time_and_sees_what_was_written_before(filled):
    early, late = ResponseFile(filled), ResponseFile(filled)
    with early.for_writing():
        early.append(group(7))
        for refused in (late.for_writing().__enter__, late.forget):
            mistake(refused)
    assert early.read(7) == group(7)
    with late.for_writing():
        assert missing(late, 7) == []


def test_answers_of_a_file_that_was_begun_anew_are_not_taken_for_a_rows(filled):
    before, other = ResponseFile(filled), ResponseFile(filled)
    other.forget()
    with other.for_writing():
        other.append(group(9))  # where row 4 was
    for row in (4, 0):
        mistake(lambda row=row: before.read(row))


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
