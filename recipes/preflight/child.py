"""Child processes for work that imports torch or runs a user's code: one call, one answer."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from recipes.errors import RecipeError
from recipes.paths import ROOT

_MARK = "answer: "
PROGRESS = "trying "
"""Prefix of a line in which the process names its next step."""


def ask(function: Callable[..., Any], *arguments: Any, limit_s: float, where: str, fix: str) -> Any:
    """Call a module-level function with these arguments in a child process; return its result, which must fit JSON.

    Args:
        where, fix: fields of the error that is raised if the process ends without an answer or exceeds `limit_s`.

    Raises:
        RecipeError: the process gives no answer, or the function raises this error, to which `where` is appended.
    """
    command = [sys.executable, "-c", f"from {__name__} import main; main()"]
    call = pickle.dumps((function, arguments))
    try:
        done = subprocess.run(command, input=call, cwd=ROOT, capture_output=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as error:
        log = (error.stderr or b"").decode(errors="replace").splitlines()
        last = next((line for line in reversed(log) if line.startswith(PROGRESS)), "starting")
        what = f"no answer within {limit_s:.0f} s; last, it was {last}"
        raise RecipeError(what, where=where, fix=fix) from error
    for line in done.stdout.decode(errors="replace").splitlines():
        if line.startswith(_MARK):
            answer, raised = json.loads(line.removeprefix(_MARK))
            if raised:
                raise RecipeError(raised["what"], where=f"{raised['where']} ({where})", fix=raised["fix"])
            return answer
    log = done.stderr.decode(errors="replace").strip().splitlines()
    last = next((line for line in reversed(log) if not line.startswith(PROGRESS)), f"exit code {done.returncode}")
    raise RecipeError(f"its process ended without an answer: {last}", where=where, fix=fix)


def main() -> None:
    """Answer `ask`; what the function prints goes to standard error."""
    function, arguments = pickle.load(sys.stdin.buffer)
    standard_output, sys.stdout = sys.stdout, sys.stderr
    answer, raised = None, None
    try:
        answer = function(*arguments)
    except RecipeError as error:
        raised = {"what": error.what, "where": error.where, "fix": error.fix}
    print(_MARK + json.dumps([answer, raised]), file=standard_output, flush=True)
