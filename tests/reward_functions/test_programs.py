"""Programs: the block that counts, the three forms of truth, and what counts as the same output."""

import json
from collections import Counter
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reward_functions.sandboxes import dispatch, needs_sandbox

programs = dispatch.programs
talk = dispatch.sandbox.talk

DOUBLE = "```python\nprint(int(input()) * 2)\n```"


@pytest.mark.parametrize(
    ("response", "program", "reason"),
    [
        (DOUBLE, "print(int(input()) * 2)\n", ""), ("```\nx = 1\n```", "x = 1\n", ""),
        ("```py\na\n```\nBetter:\n```python3\nb\n```\nDone.", "b\n", ""),
        ("<think>```python\na\n```</think>No.", "", "no_answer"), ("<think>```python\na\n```", "", "truncated"),
        ("```python\na\n```\n```python\nb", "", "truncated"), ("```python\na", "", "truncated"),
        *((f"```{name}\na\n```", "a\n", "") for name in ("Python3", "python3.11", "{.python}", "python x=1", "py3")),
        ("```python\na\n```<|im_end|>", "a\n", ""), ("```python\r\na\r\n```\r\n", "a\n", ""),
        ("~~~python\na\n~~~", "a\n", ""), ("````python\n'''\n```\n'''\n````", "'''\n```\n'''\n", ""),
        ("Here: ```python\na\n```", "a\n", ""), ("- ```py\n  a\n  ```", "a\n", ""),
        ("```pycon\n>>> a\n```", "", "no_answer"),
        ("```python\na\n```\nUse ``` to quote.", "a\n", ""), ("```python\na\n~~~", "", "truncated"),
        ("```bash\nls\n```", "", "no_answer"), ("```python\n\n```", "", "no_answer"), ("print(1)", "", "no_answer"),
    ],
)  # fmt: skip
def test_the_last_block_of_python(response, program, reason):
    assert programs.read_program(response) == (program, reason)


@pytest.mark.parametrize(
    "truth",
    [
        "", "[" * 100_000, "[]", "{}", '{"inputs": [], "outputs": []}', '{"inputs": ["1"], "outputs": []}',
        '{"inputs": [1], "outputs": ["1"]}', '{"inputs": ["x"], "outputs": ["1"], "fn_name": "f"}',
        '{"asserts": "assert f() == 1"}', '{"asserts": ["assert f() == 1", "f( == 1"]}',
        '{"asserts": ["def f(): return 1\\nassert f() == 1"]}',
        '{"asserts": ["def test_f(tmp_path): assert f() == 1"]}', '{"asserts": ["import pytest\\nassert f() == 1"]}',
        '{"asserts": ["class TestF:\\n def test_f(self): assert f() == 1"]}', '{"asserts": ["def check(): f()"]}',
        json.dumps({"inputs": ["1"] * 201, "outputs": ["1"] * 201}),
    ],
)  # fmt: skip
def test_a_broken_truth_is_the_rows_fault(truth):
    result = dispatch.compute_score("code", DOUBLE, truth)
    assert (result["score"], result["reason"]) == (0.0, "gold_unparsable")
    assert [text for text in dispatch.check_sources([("code", truth)]) if text.startswith("row 1 (code)")]


@pytest.mark.parametrize(
    ("output", "expected", "same"),
    [
        *(("4\n", "4", True), ("4 \n\n\n", "4\n", True), ("a b\nc", "a b \nc\n", True), ("4\r\n5", "4\n5", True)),
        *(("x 1.5", "x 1.5000001", True), ("4", "4.0", True)),
        *(("4.0000000001", "4.0", True), ("4.1", "4.0", False), (".5", "0.5", True), ("5e-1", "0.5", True)),
        *(("4.0", "4", False), ("04", "4", False), ("+4", "4", False), ("1e2", "100", False), ("-0", "0", False)),
        *(("1000001.0", "1000000.0", False), ("1000001", "1000000.0", False), ("1234567.8915", "1234567.891", True)),
    ],
)  # fmt: skip
def test_the_same_output(output, expected, same):
    assert programs.same_text(output, expected) is same


@given(number=st.integers(-(10**25), 10**25), other=st.integers(-(10**25), 10**25), near=st.integers(-3, 3))
def test_different_integers_are_never_the_same(number, other, near):
    for each in (other, number + near):
        for ours, theirs in ((f"{number}.0", f"{each}.0"), (f"{number}", f"{each}.0"), (f"{number}", f"{each}")):
            assert programs.same_text(ours, theirs) is (number == each)
        assert talk.same_value(number, each) is (number == each)
        assert talk.same_value(number, float(each)) is (number == float(each))
        assert talk.same_value(float(number), float(each)) is (float(number) == float(each))


@pytest.mark.parametrize(
    ("value", "expected", "same"),
    [
        *((1, 1, True), (1.0, 1, True), (1, 1.0, True), (3.0000001, 3, False), (3, 3.0000001, True)),
        *((0.1 + 0.2, 0.3, True), (True, 1, False), (True, 1.0, False), (1, True, False), (1.0, True, False)),
        *((float("nan"), 1.0, False), (float("inf"), float("inf"), True), (10**400, 1.5, False)),
        *(({1: "a"}, {"1": "a"}, True), ({"a": [1]}, {"a": [2]}, False), ((1, 2), [1, 2], True)),
        *(({1: 0, "1": 0}, {"1": 0}, False), (Counter("aa"), {"a": 2}, True), ({1}, [1], False)),
        *((Fraction(1, 2), 0.5, True), (Fraction(4), 4, True), (Decimal("0.1"), 0.1, True)),
        *((None, None, True), ("1", 1, False), ("a", "a", True), ([], {}, False), (object(), 1, False)),
    ],
)  # fmt: skip
def test_the_same_value(value, expected, same):
    assert talk.same_value(value, expected) is same


FUNCTION = "```python\ndef f(x, y=1):\n    return [x * y]\n```"
ADD = "```python\ndef f(x):\n    return x + 1\n```"
PYTEST = "def test_two():\n    assert f(2) == 3\n\ndef test_three():\n    assert f(3) == 5\n"
UNITTEST = """import unittest

class TestF(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.two = 2
    def test_two(self):
        self.assertEqual(f(self.two), 3)

if __name__ == "__main__":
    unittest.main()
"""
BY_BASE = """import unittest
class Base(unittest.TestCase):
    two = 2
class TestTwo(Base):
    def test_two(self):
        self.assertEqual(f(self.two), 3)
class TestThree(Base):
    def test_three(self):
        self.assertEqual(f(3), 5)
"""
SKIPPED = """import unittest
class TestF(unittest.TestCase):
    def test_f(self):
        f(1)
        self.skipTest("later")
"""
SKIPPED_CLASS = """import unittest
class TestF(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        f(1)
        raise unittest.SkipTest("later")
    def test_f(self):
        self.assertEqual(f(1), 2)
"""
CLASS = "```python\nclass Solution:\n    def f(self, x):\n        return {'n': (x, x)}\n```"


@needs_sandbox
@pytest.mark.parametrize(
    ("response", "truth", "share", "reason"),
    [
        (DOUBLE, {"inputs": ["1", "2"], "outputs": ["2", "4"]}, 1.0, "correct"),
        (DOUBLE, {"inputs": ["1", "2", "x", "4"], "outputs": ["2", "5", "", "8"]}, 0.5, "partial"),
        (DOUBLE, {"inputs": ["x", "1"], "outputs": ["3", "3"]}, 0.0, "runtime_error"),
        ("```\ndef f(:\n```", {"inputs": ["x"], "outputs": ["3"]}, 0.0, "syntax_error"),
        (FUNCTION, {"fn_name": "f", "inputs": [[2], [2, 3]], "outputs": [[2], [6]]}, 1.0, "correct"),
        (FUNCTION, {"fn_name": "f", "inputs": ["2\n3", '"a"\n2'], "outputs": ["[6]", '["aa"]']}, 1.0, "correct"),
        (CLASS, {"fn_name": "f", "inputs": [[2]], "outputs": [{"n": [2, 2]}]}, 1.0, "correct"),
        (FUNCTION, {"asserts": ["assert f(2) == [2]", "assert f(2)[0] == 3", "assert not f('')"]}, 1 / 3, "partial"),
        (FUNCTION, {"asserts": ["assert sum(f(2, 4)) == 8 and len(f(1)) == 1"]}, 1.0, "correct"),
        (ADD, {"fn_name": "f", "inputs": [[2], [3]], "outputs": [[3], [4]]}, 1.0, "correct"),
        (ADD, {"fn_name": "f", "inputs": [[2], [3]], "outputs": [[3], [5]]}, 0.5, "partial"),
        (ADD, {"fn_name": "f", "inputs": [[2], [3]], "outputs": [[3], [4, 5]]}, 0.0, "wrong"),
        (ADD, {"asserts": [f"from solution import f\n\n{PYTEST}"]}, 0.5, "partial"),
        (ADD, {"asserts": [UNITTEST]}, 1.0, "correct"),
        (ADD, {"asserts": [f"{PYTEST}\nif __name__ == '__main__':\n    test_two()\n    test_three()"]}, 0.5, "partial"),
        (FUNCTION, {"asserts": [UNITTEST, "assert f(1) == [1]"]}, 0.5, "partial"),
        (ADD, {"asserts": [BY_BASE]}, 0.5, "partial"),
    ],
)
def test_scores(response, truth, share, reason):
    result = dispatch.compute_score("code", response, json.dumps(truth))
    assert (result["score"], result["tests"], result["reason"], result["format"]) == (share, share, reason, 1.0)


@needs_sandbox
@pytest.mark.parametrize("test", [SKIPPED, SKIPPED_CLASS])
def test_tests_that_are_all_skipped_are_the_rows_fault(test):
    result = dispatch.compute_score("code", ADD, json.dumps({"asserts": [test]}))
    assert (result["score"], result["reason"]) == (0.0, "gold_unparsable")
