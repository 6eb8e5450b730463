"""Tests of programs: what is none is refused, what is ordinary means what Python says, and nothing can be forged."""

from pathlib import Path

import pytest

from tests.reward_functions.sandboxes import dispatch, needs_sandbox, sandbox

pytestmark = pytest.mark.timeout(300)  # a program's own seconds, and a queue for a core

programs = dispatch.programs

*FORGING, (_, TESTS) = (
    section.split("\n", 1)
    for section in Path(__file__).with_name("forging_programs.txt").read_text(encoding="utf-8").split("### ")[1:]
)
TESTS = [line.replace("\\\\n", "\0").replace("\\n", "\n").replace("\0", "\\n") for line in TESTS.strip().split("\n")]


def judged(program: str, texts: list[str], **limits: float) -> list[dict]:
    tests = programs.read({"asserts": texts})
    return sandbox.run(tests.kind, program, tests.inputs, sandbox.Limits(**limits))


@needs_sandbox
@pytest.mark.parametrize(("name", "program"), FORGING, ids=[name for name, _ in FORGING])
def test_no_test_holds_for_a_program_that_does_not_know_the_answer(name, program):
    results = judged(f"{program}\nArea = f", TESTS, test_s=0.5, wall_s=0.75, total_s=3.0, total_wall_s=7.5)
    assert [text for text, each in zip(TESTS, results, strict=True) if each["status"] == "held"] == []


@pytest.mark.parametrize(
    "text",
    [
        *("", "import os", "assert", "assert f(", "(" * 9999, "\x00", "assert 1 == 1", "x = 3\nassert x == 3"),
        *("def f(x): return x\nassert f(2) == 2", "from f import f\nassert f(2) == 2", "assert np.allclose(f(2), [1])"),
        *("assert f(2) == pytest.approx(4)", "assert eval(f(2)) == 4", "import pickle\nassert pickle.loads(f(2)) == 4"),
        *("assert asyncio.run(f(2)) == 4", "try: f(2)\nexcept Own: pass"),
    ],
)
def test_what_is_no_test_of_a_program_is_refused(text):
    truth = {"asserts": ["assert f(1) == 1", text]}
    with pytest.raises(programs.TruthError):
        programs.read(truth)
    assert dispatch.check_sources([("code", truth)])[0].startswith("row 1 (code)")


@needs_sandbox
@pytest.mark.parametrize(
    "text",
    [
        "assert f(2) == 10 ** 10 ** 10",  # never ends, whatever the program is
        "class Mine: pass\nassert f(Mine()) == 1",  # cannot be sent
        "def check(candidate):\n    assert candidate(1) == 1\nf",  # nothing is asked
        "return f(2)",
    ],
)
def test_a_test_that_no_program_could_pass_is_the_rows_fault(text):
    truth = {"asserts": [text, "assert f(1) == 1"]}
    if text.endswith("\nf"):
        truth = {"asserts": ["def check(): return f"]}
    result = dispatch.compute_score("code", "```\ndef f(x): return 1\n```", truth, limits={"test_s": 0.3})
    assert (result["score"], result["reason"]) == (0.0, "gold_unparsable")


@needs_sandbox
@pytest.mark.parametrize("constant", ["True", "False", "1", "[0]", "None"])
def test_guessing_yes_or_no_pays_only_where_all_is_right(constant):
    program = f"```\ndef f(*a): return {constant}\n```"
    for truth in (
        {"asserts": ["assert f(2)", "assert not f(4)", "assert f(5) == True", "assert f(6) is False"]},
        {"fn_name": "f", "inputs": [[2], [4]], "outputs": [True, False]},
    ):
        assert dispatch.compute_score("code", program, truth)["score"] == 0.0
        right = "```\ndef f(x): return x in (2, 5)\n```"
        assert dispatch.compute_score("code", right, truth)["score"] == 1.0
    hangs = "```\ndef f(x):\n    while x >= 4: pass\n    return True\n```"
    calls = {"fn_name": "f", "inputs": [[each] for each in range(10)], "outputs": [True] * 4 + [False] * 6}
    assert dispatch.compute_score("code", hangs, calls)["score"] == 0.0
    script = {"inputs": ["2", "4"], "outputs": ["YES", "NO"]}
    assert dispatch.compute_score("code", "```\nprint('YES')\n```", script)["score"] == 0.0


STATUSES = {
    "def f(x): raise AssertionError": "runtime_error",
    "def f(x): raise SystemExit": "runtime_error",
    "def f(x): raise MemoryError": "memory_limit",
    "def f(x): return 8": "failed",
    "def f(x): return 'x' * 10 ** 7": "output_limit",
    "def f(x):\n    import os\n    os._exit(0)": "runtime_error",
    "def f(x):\n    while True: pass": "timeout",
    "def f(x):\n    while True: print(x)": "timeout",
    "def g(x): return 9": "runtime_error",
    "def f(": "syntax_error",
    "raise ValueError": "runtime_error",
    "while True: pass": "timeout",
    "import os\nos._exit(0)": "runtime_error",
}


@needs_sandbox
@pytest.mark.parametrize("program", STATUSES)
def test_how_a_program_fails(program):
    texts = ["try:\n    assert f(3) == 9\nexcept ZeroDivisionError:\n    pass", "assert f(3) == 9"]
    results = judged(program, texts, test_s=0.4, total_s=2.0)
    assert [each["status"] for each in results] == [STATUSES[program]] * 2


HOSTILE = {
    "100 MB": "return 'x' * (100 << 20)",
    "a recursive list": "a = []; a.append(a); return a",
    "NaN": "return float('nan')",
    "a class called int": "return type('int', (), {'__eq__': lambda s, o: True, '__module__': 'builtins'})()",
    "a number that fills the memory": "import decimal; return decimal.Decimal('1E999999999')",
    "a signalling NaN": "import decimal; return decimal.Decimal('sNaN')",
    "brackets without an end": "import os; os.write(3, b'[' * 200000 + b'\\n')",
    "lines of its own": "import os; os.write(3, b'\\xff\\n\\n3\\n[]\\n[1]\\n[[], 1, 1]\\n[\"held\", 9, []]\\n')",
    "the exit code of success": "import os; os._exit(0)",
}


@needs_sandbox
@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_hostile_values_are_wrong_and_nothing_more(body):
    program = f"```\ndef f(x):\n    {body}\n```"
    calls = {"fn_name": "f", "inputs": [[1], [2]], "outputs": [1.5, [True]]}
    for truth in (calls, {"asserts": ["assert f(1) == 1.5", "assert 3 < f(2) < 4 or f(2) == [True]"]}):
        patient = {"wall_s": 20.0, "total_wall_s": 40.0}  # on a busy machine 100 MB take seconds
        result = dispatch.compute_score("code", program, truth, limits=patient)
        assert result["score"] == 0.0
        assert result["reason"] in ("wrong", "runtime_error", "memory_limit", "output_limit")
