"""Programs and asserts have the verdict in the sandbox that plain Python gives them."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.reward_functions.sandboxes import dispatch, needs_sandbox, sandbox

HERE = Path(__file__).parent
programs = dispatch.programs
pytestmark = [needs_sandbox, pytest.mark.timeout(300)]  # a program's own seconds, and a queue for a core


def ordinary_programs() -> dict[str, tuple[str, str]]:
    """Name -> (standard input, program), of the kind that models write."""
    programs = {}
    for section in (HERE / "ordinary_programs.txt").read_text(encoding="utf-8").split("### ")[1:]:
        name, _, text = section.partition("\n")
        lines = text.split("\n")
        stdin = [line[3:] for line in lines if line.startswith("#< ")]
        programs[name] = "\n".join(stdin), "\n".join(line for line in lines if not line.startswith("#< "))
    return programs


def plainly(program: str, stdin: str, folder: Path) -> str | None:
    """The output of `python program.py`; None where it ends with another exit code than 0."""
    folder.mkdir()
    (folder / "program.py").write_text(program, encoding="utf-8")
    command = [sys._base_executable, "-X", "utf8", "program.py"]  # without packages
    done = subprocess.run(command, cwd=folder, input=stdin.encode(), capture_output=True, env={}, timeout=50)
    return done.stdout.decode() if done.returncode == 0 else None


def test_programs_print_what_they_print_under_plain_python(tmp_path):
    ordinary = ordinary_programs()

    def compared(job: tuple[int, str]) -> tuple[str, object, object]:
        number, name = job
        stdin, program = ordinary[name]
        expected = plainly(program, stdin, tmp_path / str(number))
        (result,) = sandbox.run("script", program, [stdin], sandbox.Limits())
        return name, expected, result["output"] if result["status"] == "ran" else None

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(compared, enumerate(ordinary)))
    assert len(results) >= 60
    different = {name: (expected, got) for name, expected, got in results if expected != got}
    assert different == {}
    assert sum(expected is None for _, expected, _ in results) >= 3, "some are to fail, in both"


PLAINLY = """
import asyncio, bisect, contextlib, datetime, decimal, fractions, functools, io, math
from datetime import date
from decimal import Decimal
from fractions import Fraction
for text in {tests!r}:
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            exec({definitions!r}, globals())
            exec(text, globals())
        except BaseException:
            held = False
        else:
            held = True
    print(held)
"""


def test_tests_have_the_verdict_of_plain_python(tmp_path):
    """Functions, classes, exceptions, changes in place, generators, output, unittest."""
    sections = (HERE / "ordinary_tests.txt").read_text(encoding="utf-8").split("### program\n")[1:]
    for number, section in enumerate(sections):
        definitions, *texts = section.split("#### test\n")
        printed = plainly(PLAINLY.format(tests=texts, definitions=definitions), "", tmp_path / str(number))
        tests = programs.read({"asserts": texts})
        results = sandbox.run(tests.kind, definitions, tests.inputs, sandbox.Limits())
        held = {text: each["status"] == "held" for text, each in zip(texts, results, strict=True)}
        assert held == dict(zip(texts, [line == "True" for line in printed.split()], strict=True))
