"""Asserts: what goes to the program, what is refused, and that a program cannot make one hold that it does not know."""

from __future__ import annotations

import time
from collections import Counter, deque
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.data.rewards import load_reward

sandboxes = load_reward("tests/reward_functions/sandboxes.py")
dispatch, needs_sandbox = sandboxes.dispatch, sandboxes.needs_sandbox
programs, sandbox = dispatch.programs, dispatch.sandbox
asserts = programs.asserts
values = load_reward(sandbox.SANDBOXED / "values.py")


@pytest.mark.parametrize(
    "text",
    [
        *("", "f(2) == 4", "import os", "assert f(2) == 4; f(3)", "assert", "assert f(", "(" * 9999, "\x00"),
        *("assert all(f(i) == i * i for i in range(9))", "assert all(f(a) == b for a, b in [(1, 1), (2, 4)])"),
        *("assert [f(a) for a, b in [(1, 2)]] == [2]", "assert sorted([2, 1], key=lambda x: f(x) == 1) == [2, 1]"),
        *("assert f(2) == pytest.approx(4)", "assert np.allclose(f(2), [1])", "assert (x := f(2)) == 1"),
    ],
)
def test_what_cannot_be_decided_out_of_its_reach_is_refused(text):
    with pytest.raises(asserts.Unsupported):
        asserts.split(text)
    (problem,) = dispatch.check_sources([("code", {"asserts": [text]})], sandbox_fusion_url="http://127.0.0.1:9/")[:1]
    assert problem.startswith("row 1 (code)")


ATTACKS = Path(__file__).with_name("attack_programs.txt").read_text(encoding="utf-8").split("### ")[1:]
*ATTACKS, (_, UNKNOWN) = [attack.split("\n", 1) for attack in ATTACKS]


@needs_sandbox
@pytest.mark.parametrize(("name", "program"), ATTACKS, ids=[name for name, _ in ATTACKS])
def test_no_assert_holds_for_a_program_that_does_not_know_the_answer(name, program):
    unknown = [text for text in UNKNOWN.strip().split("\n") if "CANARY" in text or name != "search"]
    tests = programs.read({"asserts": unknown})
    limits = sandbox.Limits(test_s=0.5, wall_s=1.0, total_s=2.0, total_wall_s=3.0)
    for body in (program, program + "\ndef f(*a): return 1\nimport os\nos._exit(0)"):
        results = sandbox.run(tests.kind, body, tests.inputs, limits, list(tests.decisions))
        assert [text for text, each in zip(unknown, results, strict=True) if each.get("held")] == []


@needs_sandbox
def test_an_expected_value_that_cannot_be_computed_is_the_rows_fault():
    """Known when the data is made; and where nobody asked, no program is scored by it."""
    fine = ("code", {"asserts": ["assert f(2) == [0] * 3", "assert g(2) == sorted({3, 1})"]})
    endless, index, name = ("assert f(2) == 10 ** 10 ** 10", "assert f(2) == [1][3]", "assert f(2) == math.no_such(3)")
    truths = [{"asserts": ["assert f(1) == 1", text]} for text in (endless, index, name)]
    problems = dispatch.check_sources([fine, *(("code", truth) for truth in truths), fine], limits={"test_s": 0.3})
    assert [text.partition(" value")[0] for text in problems] == [f"row {number}: the expected" for number in (2, 3, 4)]
    for truth in truths[:2]:
        result = dispatch.compute_score("code", "```\ndef f(x): return 1\n```", truth, limits={"test_s": 0.3})
        assert (result["score"], result["reason"]) == (0.0, "gold_unparsable")


JSON = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
NUMBERS = st.integers(2**1020, 2**1030) | st.complex_numbers(allow_nan=False) | st.fractions()
OTHERS = (
    st.decimals(allow_nan=False) | st.binary(max_size=4) | st.datetimes() | st.dates() | st.times() | st.timedeltas()
)
OTHERS |= st.lists(st.integers(0, 9)).map(deque) | st.text(max_size=4).map(Counter) | st.binary().map(bytearray)
PYTHON_VALUES = st.recursive(
    JSON | NUMBERS | OTHERS | st.frozensets(st.integers(), max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(value=PYTHON_VALUES)
def test_values_come_back_as_they_were(value):
    text = values.encode(value)
    assert text.isascii() and not set(text) & set("\n\t")  # noqa: PT018
    decoded = values.decode(text)
    assert (decoded, type(decoded)) == (value, type(value))


CLAIMS = st.recursive(
    JSON | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*values.BUILD, "x"]), inner, max_size=2)
    ),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(value=CLAIMS)
def test_any_value_that_a_program_claims_has_a_verdict(value):
    """It may write its report itself; here it does not know the answer."""
    tests = programs.read({"fn_name": "f", "inputs": [[1]], "outputs": [["the answer", 1.5]]})
    assert programs.passed(tests, [{"status": "ran", "value": value}]) == (0, "wrong")


def test_claims_that_would_fill_the_memory_or_take_long_are_refused():
    begin = time.process_time()
    for claim in ({"Decimal": "1e999999999"}, {"Fraction": [{"int": "f" * 200_000}, {"int": "e" * 199_999}]}):
        assert not programs.same_value(claim, 0.5)
    assert not programs.same_value({"dict": [[key, 0] for key in range(20_000)]}, {"a": 0})
    assert not programs.same_text("1.0e999 " * 30_000, "1.0 " * 30_000)
    assert programs.same_text("1e400", "1.0e400")
    assert time.process_time() - begin < 2
