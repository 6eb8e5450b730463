"""Asserts are decided outside the sandbox: what goes in is the program's part, and only that."""

from __future__ import annotations

import json
import runpy
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.data.rewards import load_reward

dispatch = load_reward("reward_functions/dispatch.py")
programs = dispatch.programs
asserts = programs.asserts


@pytest.mark.parametrize(
    ("text", "expressions"),
    [
        ("assert f(2) == 4", ["f(2)"]),
        ("assert 4 == f(2), 'message'", ["f(2)"]),
        ("assert f([1, 2], key='a') == f(3) == 4", ["f([1, 2], key='a')", "f(3)"]),
        ("assert sorted(f(2)) == [1, 2]", ["f(2)"]),
        ("assert set(f((1, 2))) == set([1])", ["f((1, 2))"]),
        ("assert abs(f(2) - 3.5) < 1e-6", ["f(2)"]),
        ("assert math.isclose(f(2), 0.5, rel_tol=0.001)", ["f(2)"]),
        ("assert f(2)[0] == 4", ["f(2)"]),
        ("assert f(2)[1:] == [4]", ["f(2)[1:]"]),
        ("assert Solution().f(2).value == 4", ["Solution().f(2).value"]),
        ("assert not f(2) and f(3)", ["f(2)", "f(3)"]),
        ("assert 5 in f(2)", ["f(2)"]),
        ("assert isinstance(f(2), list) and len(f(2)) == 3", ["f(2)", "f(2)"]),
        ("assert type(f(2)) is int", ["f(2)"]),
        ("assert {'a': f(1)} == {'a': -1}", ["f(1)"]),
        ("assert [f(i) for i in range(3)] == [0, 1, 4]", ["[f(i) for i in range(3)]"]),
        ("assert 'x'.join(f(2)) == 'axb'", ["'x'.join(f(2))"]),
        ("assert sum(10, 15) == 6", ["sum(10, 15)"]),
        ("assert LIMIT == 10**3", ["LIMIT"]),
    ],
)
def test_the_programs_part(text, expressions):
    split = asserts.split(text)
    assert split.expressions == expressions


@pytest.mark.parametrize(
    "text",
    [
        *("", "f(2) == 4", "import os", "assert f(2) == 4; f(3)", "assert", "assert f(", "(" * 9999, "assert 1 == 1"),
        *("assert all(f(i) == i * i for i in range(9))", "assert (lambda: f(2))() == f(1) if f(2) else 1"),
        *(
            "assert f(2) == pytest.approx(4)",
            "assert np.allclose(f(2), [1])",
            "assert ~f(2) == 1",
            "assert f(2) | 1 == 3",
        ),
        *(
            "assert {**f(2)} == {}",
            "assert [*f(2)] == []",
            "assert sorted(f(2), key=len) == []",
            "assert (x := f(2)) == 1",
        ),
        *("assert f'{f(2)}' == '4'", "\x00", "assert " + "-" * 5000 + "f(2)", "assert f(2) == 4\nassert f(3) == 9"),
    ],
)
def test_what_cannot_be_decided_outside_is_refused(text):
    with pytest.raises(asserts.Unsupported):
        asserts.split(text)


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        ("assert f() == 4", 4, True),
        ("assert f() == 4", 5, False),
        ("assert f() == (1, 2)", (1, 2), True),
        ("assert f() == (1, 2)", [1, 2], False),
        ("assert f() == {1, 2}", {2, 1}, True),
        ("assert f() != 4", 5, True),
        ("assert f() is None", None, True),
        ("assert f() is True", 1, False),
        ("assert f() is not None", programs.Other(), True),
        ("assert f() == 4", programs.Other(), False),
        ("assert f()", programs.Other(), True),
        ("assert f()", [], False),
        ("assert not f()", [], True),
        ("assert 1 < f() < 3", 2, True),
        ("assert 1 < f() < 3", 3, False),
        ("assert f() in (1, 2)", 2, True),
        ("assert f() not in [1]", 1, False),
        ("assert sorted(f()) == [1, 2]", {2, 1}, True),
        ("assert sorted(f()) == [1, 2]", [2, "a"], False),
        ("assert sorted(f(), reverse=True) == [2, 1]", [1, 2], True),
        ("assert Counter(f()) == Counter('aab')", "aba", True),
        ("assert f()[0] == 1", [1], True),
        ("assert f()[0] == 1", [], False),
        ("assert f()['k'] == 1", {"k": 1}, True),
        ("assert round(f(), 2) == 0.33", 1 / 3, True),
        ("assert abs(f() - 0.3) < 10 ** -6", 0.1 + 0.2, True),
        ("assert math.isclose(f(), 0.3)", 0.1 + 0.2, True),
        ("assert isinstance(f(), (int, float))", 2.0, True),
        ("assert type(f()) == list", (1,), False),
        ("assert f() * 2 == 4 and f() - 1 == 1", 2, False),  # two holes, one value
        ("assert f() + [3] == [2, 3]", [2], True),
        ("assert f() / 0 == 1", 5, False),
        ("assert f() * 10 ** 9 == 1", "a", False),  # a text of a gigabyte is not made
        ("assert '%9999999999d' % f() == ''", 3, False),
        ("assert f() ** 2 == 4", 10**3000, False),
        ("assert f() > 1", "a", False),
    ],
)
def test_the_decision(text, value, holds):
    assert asserts.split(text).holds([value]) is holds


def test_a_value_with_tricks_cannot_arise():
    """What comes out of the sandbox is plain data: no class of the program's, hence no `__eq__` of its own."""
    forged = ['{"other": "AlwaysEqual"}', '{"float": 1}', "[1, 2", '{"dict": [[[], 1]]}', '{"tuple": 5}', "{}"]
    for text in forged:
        try:
            value = programs.decoded(json.loads(text))
        except (ValueError, TypeError, AttributeError):
            continue
        assert not asserts.split("assert f() == 4").holds([value])


def test_values_that_hash_alike_are_refused_at_once():
    """Else a program could keep the trainer busy for seconds with a set."""
    alike = [number * (2**61 - 1) for number in range(1, 9000)]
    begin = time.process_time()
    assert not asserts.split("assert set(f()) == {1}").holds([alike])
    for kind, content in (("set", alike), ("frozenset", alike), ("dict", [[key, 0] for key in alike])):
        with pytest.raises(ValueError, match="hash alike"):
            programs.decoded({kind: content})
    assert time.process_time() - begin < 0.5
    assert programs.decoded({"set": list(range(9000))}) == set(range(9000))
    assert asserts.split("assert Counter(f()) == Counter({0: 9000})").holds([[0] * 9000]) is True


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.frozensets(st.integers()),
    max_leaves=8,
)


@settings(max_examples=80, deadline=None)
@given(value=VALUES, other=VALUES)
def test_comparisons_are_pythons_own(value, other):
    """Against Python itself, through the text of the assert and the values' way out of the sandbox."""
    plain = runpy.run_path(str(dispatch.sandbox.INSIDE / "harness.py"))["plain"]
    came_back = programs.decoded(json.loads(plain(value)))
    assert came_back == value
    assert type(came_back) is type(value)
    text = f"assert f() == {other!r}"
    assert asserts.split(text).holds([came_back]) is (value == other)
    assert asserts.split(f"assert f() == {value!r}").holds([came_back]) is True
