"""Responses on disk: whole lines, resume, one writer."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recipes.errors import RecipeError
from recipes.evaluation.records import Group, JsonLines, Response, ResponseFile, check_group, clean_text


def group(row: int, *texts: str) -> Group:
    return Group(row, tuple(Response(text, len(text), "stop", -1.5) for text in texts or ("a", "b")))


@pytest.fixture
def filled(tmp_path):
    path = tmp_path / "responses.jsonl"
    with ResponseFile(path) as file:
        file.open_for_append()
        for row in (4, 0, 9):
            file.append(group(row, f"one {row}", "two\nlines"))
    return path


def test_groups_are_read_back_in_any_order(filled):
    with ResponseFile(filled) as file:
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
    with ResponseFile(path) as file:
        file.open_for_append()
        file.append(group(1, *map(clean_text, texts)))
    with ResponseFile(path) as file:
        assert [response.text for response in file.read(1).responses] == [clean_text(text) for text in texts]


def test_lone_surrogates_become_text():
    assert clean_text("a\ud800b") == "a\\ud800b"
    assert clean_text("é 🙂") == "é 🙂"


def test_half_a_line_is_cut_off_and_generation_resumes(filled):
    whole = filled.read_bytes()
    filled.write_bytes(whole + b'{"row": 5, "responses": [{"te')
    with ResponseFile(filled) as file:
        assert len(file) == 3
        file.open_for_append()
        file.append(group(5))
    assert filled.read_bytes().startswith(whole)
    with ResponseFile(filled) as file:
        assert len(file) == 4
        assert file.read(5) == group(5)


def test_a_broken_line_in_the_middle_is_named(filled):
    lines = filled.read_text().splitlines(keepends=True)
    filled.write_text(lines[0] + "not a record\n" + lines[2])
    with pytest.raises(RecipeError, match="line 2") as found:
        ResponseFile(filled)
    assert "delete" in found.value.fix


def test_two_writers_do_not_mix(filled):
    with ResponseFile(filled) as one, ResponseFile(filled) as other:
        one.open_for_append()
        with pytest.raises(RecipeError, match="another evaluation"):
            other.open_for_append()
    with ResponseFile(filled) as later:
        later.open_for_append()


def test_a_writer_sees_what_another_wrote_before_it(filled):
    with ResponseFile(filled) as late:
        with ResponseFile(filled) as early:
            early.open_for_append()
            early.append(group(7))
        late.open_for_append()
        assert 7 in late


@pytest.mark.parametrize("logprob", [float("nan"), float("inf"), float("-inf")])
def test_log_probabilities_must_be_finite(logprob):
    with pytest.raises(RecipeError, match="log-probability of response 1 to row 3"):
        check_group(Group(3, (Response("", 1, "stop", -1.0), Response("", 1, "stop", logprob))), 2)


def test_a_group_must_be_complete():
    with pytest.raises(RecipeError, match="1 responses instead of 2"):
        check_group(Group(3, (Response("", 1, "stop", None),)), 2)


def test_json_lines_refuse_nan(tmp_path):
    file = JsonLines(tmp_path / "deep" / "x.jsonl")
    file.write({"text": "é\n"})
    with pytest.raises(ValueError, match="JSON compliant"):
        file.write({"value": float("nan")})
    file.close()
    assert json.loads((tmp_path / "deep" / "x.jsonl").read_text()) == {"text": "é\n"}
