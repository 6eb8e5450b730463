"""Lists and objects in cells: what pandas and NumPy print is read back, and other texts stay what they are."""

import json

import numpy as np
import pytest

from recipes.written import is_meant_as_one, written

VALUES = [
    ["red", "dark red", "it's", 'say "x"\n'],
    [{"role": "system", "content": "a 'b'"}, {"role": "user", "content": "[1] {x}"}],
    {"inputs": ["3\n", "4"], "fn": None, "right": [True, False], "levels": [1.5, -2.0], "deep": [[1, 2], [3, 4]]},
]


def as_arrays(value):
    if isinstance(value, dict):
        return {name: as_arrays(each) for name, each in value.items()}
    return np.array(value, dtype=object) if isinstance(value, list) else value


@pytest.mark.parametrize("value", VALUES)
def test_every_spelling_of_a_value_is_the_value(value):
    spellings = [json.dumps(value), repr(value), str(as_arrays(value)), str(as_arrays([value])).strip()[1:-1]]
    assert [written(spelling) for spelling in spellings] == 4 * [value]
    assert written(str(np.array(["red", "dark red"]))) == ["red", "dark red"]
    assert written(str([np.str_("a"), np.int64(3), np.True_, float("nan")])) == ["a", 3, True, None]


@pytest.mark.parametrize(
    "text", ["[1] is a list", "{1, 2}", "[x, y]", "[f(1)]", "[1/2, 3]", "[0-9]", "[007]", r"{\frac12}", "[b'x']"]
)
def test_other_texts_stay(text):
    assert written(text) == text
    assert not is_meant_as_one(text) or text == "[b'x']"


def test_a_list_that_numpy_shortened_is_meant_as_one_and_cannot_be_read():
    text = str(np.array(["a"] * 2000))
    assert (written(text), is_meant_as_one(text)) == (text, True)
