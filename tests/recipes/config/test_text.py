"""Text of variables and arguments becomes values of the key's type."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.config import text
from recipes.config.text import parse_as

Names = list[Literal["console", "file"]]


@pytest.mark.parametrize(
    ("text", "annotation", "value"),
    [
        ("3", int, 3),
        ("3", str, "3"),
        ("1e-6", float, 1e-6),
        ("2E5", float, 2e5),
        ("-1", int, -1),
        ("null", int | None, None),
        ("None", str | None, None),
        ("none", str, "none"),
        ("1", bool, True),
        ("Off", bool, False),
        ("1", int, 1),
        ("console,file", Names, ["console", "file"]),
        ("[console, file]", Names, ["console", "file"]),
        ("a.parquet", str | list[str], "a.parquet"),
        ("[a.parquet, b.parquet]", str | list[str], ["a.parquet", "b.parquet"]),
        ("0.9,0.95", list[float], [0.9, 0.95]),
        ("on", Literal["on", "off"], "on"),
        ("yes", str, "yes"),
        ("word", int, "word"),
        ("{a: 1}", dict, {"a": 1}),
        ("a: b: c", dict, "a: b: c"),
    ],
)
def test_text_is_read_as_the_type_asks(text, annotation, value):
    found = parse_as(text, annotation)
    assert found == value
    assert type(found) is type(value)


@given(st.one_of(st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False)))
@settings(max_examples=100, deadline=None)
def test_numbers_and_truths_come_back(value):
    annotation = {int: int, bool: bool, float: float, type(None): int | None}[type(value)]
    assert parse_as(text.flow(value), annotation) == value


@given(st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=200, deadline=None)
def test_pythons_floats_are_floats(value):
    assert text.parse(repr(value)) == value
    assert isinstance(text.parse(repr(value)), float)


@given(
    st.dictionaries(st.text("abc", min_size=1), st.one_of(st.integers(), st.text(), st.lists(st.text(), max_size=3)))
)
@settings(max_examples=100, deadline=None)
def test_what_is_dumped_is_read_again(tree):
    assert text.parse(text.dump(tree)) == tree
    assert text.parse(text.flow(tree)) == tree
    assert "\n" not in text.flow(tree)


@pytest.mark.parametrize("word", ["2024-01-01", "qwen3", "e5", "1e", ".", "-", "1.2.3", "http://e1"])
def test_words_stay_words(word):
    assert not isinstance(text.parse(word), float | int)
