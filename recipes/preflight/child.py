"""Work in a process of its own, for what imports torch or runs a user's code: one question, one answer.

Both are dataclasses, which travel as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

from pydantic import TypeAdapter

from recipes.paths import ROOT

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Question = TypeVar("Question")
Answer = TypeVar("Answer")

_MARK = "answer: "


PROGRESS = "trying "
"""First word of a line in which the process tells its next step."""


class ChildError(Exception):
    """The process ended without an answer; the text is the last line that it printed, or its exit code."""


def ask(module: str, question: DataclassInstance, answer: type[Answer], limit_s: float) -> Answer:
    """The answer of the `main` of a module, which calls `answer_with`.

    Args:
        answer: the dataclass that the module answers with.

    Raises:
        ChildError: there is none.
        TimeoutError: there is none within `limit_s`; the text is what the process did last.
    """
    text = json.dumps(asdict(question), default=str)
    command = [sys.executable, "-c", f"from {module} import main; main()"]
    try:
        done = subprocess.run(
            command, input=text, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        log = (error.stderr or b"").decode(errors="replace").splitlines()
        raise TimeoutError(next((line for line in reversed(log) if line.startswith(PROGRESS)), "starting")) from error
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            return TypeAdapter(answer).validate_python(json.loads(line.removeprefix(_MARK)))
    log = [line for line in done.stderr.strip().splitlines() if not line.startswith(PROGRESS)]
    raise ChildError((log or [f"exit code {done.returncode}"])[-1])


def answer_with(function: Callable[[Question], DataclassInstance], question: type[Question]) -> None:
    """Answer the question on standard input; what the function prints goes to standard error."""
    asked = TypeAdapter(question).validate_python(json.load(sys.stdin))
    standard_output, sys.stdout = sys.stdout, sys.stderr
    print(_MARK + json.dumps(asdict(function(asked))), file=standard_output, flush=True)
