"""Child processes for work that imports torch or runs a user's code: one question, one answer.

The question is a dataclass; both travel as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter

from recipes.errors import RecipeError
from recipes.paths import ROOT

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Question = TypeVar("Question")
Answer = TypeVar("Answer")

_MARK, _ERROR = "answer: ", "refused: "


PROGRESS = "trying "
"""Prefix of a line in which the process names its next step."""


def ask(module: str, question: DataclassInstance, answer: type[Answer], limit_s: float, where: str, fix: str) -> Answer:
    """Run a module's `main`, which calls `answer_with`, in a child process, and return its answer.

    Args:
        answer: type of the module's answer.
        where, fix: of the error for a process that ends without an answer or exceeds `limit_s`.

    Raises:
        RecipeError: there is no answer; or the error that the module raised, with `where` beside its own.
    """
    text = json.dumps(asdict(question), default=str)
    command = [sys.executable, "-c", f"from {module} import main; main()"]
    try:
        done = subprocess.run(
            command, input=text, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        log = (error.stderr or b"").decode(errors="replace").splitlines()
        last = next((line for line in reversed(log) if line.startswith(PROGRESS)), "starting")
        what = f"no answer within {limit_s:.0f} s; last, it was {last}"
        raise RecipeError(what, where=where, fix=fix) from error
    for line in done.stdout.splitlines():
        if line.startswith(_ERROR):
            raised = json.loads(line.removeprefix(_ERROR))
            raise RecipeError(raised["what"], where=f"{raised['where']} ({where})", fix=raised["fix"])
        if line.startswith(_MARK):
            return TypeAdapter(answer).validate_python(json.loads(line.removeprefix(_MARK)))
    log = [line for line in done.stderr.strip().splitlines() if not line.startswith(PROGRESS)]
    last = (log or [f"exit code {done.returncode}"])[-1]
    raise RecipeError(f"its process ended without an answer: {last}", where=where, fix=fix)


def answer_with(function: Callable[[Question], Any], question: type[Question]) -> None:
    """Answer the question on standard input; what the function prints goes to standard error."""
    asked = TypeAdapter(question).validate_python(json.load(sys.stdin))
    standard_output, sys.stdout = sys.stdout, sys.stderr
    try:
        text = _MARK + json.dumps(function(asked))
    except RecipeError as error:
        text = _ERROR + json.dumps({"what": error.what, "where": error.where, "fix": error.fix})
    print(text, file=standard_output, flush=True)
