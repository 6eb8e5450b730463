"""Child processes for work that imports torch or runs a user's code: one call, one answer."""

import json
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from subprocess import PIPE
from typing import Any

from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.progress_bar import SILENCE

_MARK = "answer: "
PROGRESS = "trying "
"""Prefix of a line in which the process names its next step."""


def ask(
    function: Callable[..., Any],
    *arguments: Any,
    limit_s: float,
    where: str,
    fix: str,
    step_limit_s: float | None = None,
) -> Any:
    """Call a module-level function in a child process; return its result, which must fit JSON.

    After each `SILENCE` seconds a line on standard error names the step that is waited for. `limit_s` is the longest
    time until the process names its first step, and of all of them without `step_limit_s`, that of each.

    Raises RecipeError, with `where` and `fix`, without an answer in time, or as the function raises it.
    """
    command = [sys.executable, "-c", f"from {__name__} import main; main()"]
    given: bytes | None = pickle.dumps((function, arguments))
    begin, step, since = time.monotonic(), "starting", 0.0
    with subprocess.Popen(command, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
        try:
            while True:
                limit = (step_limit_s if step.startswith(PROGRESS) else None) or limit_s
                waited = time.monotonic() - begin
                try:
                    output, errors = process.communicate(given, min(SILENCE, max(0.0, since + limit - waited)))
                    break
                except subprocess.TimeoutExpired as error:
                    given, waited, last = None, time.monotonic() - begin, _last_step(error.stderr or b"")
                    if last != step:
                        step, since = last, waited if step_limit_s else 0.0
                    elif waited - since >= limit:
                        what = f"no answer within {limit:.0f} s; last, it was {step}"
                        raise RecipeError(what, where=where, fix=fix) from error
                    print(f"{waited:.0f} s without an answer from {where.partition(';')[0]}: {step}", file=sys.stderr)
        finally:
            process.kill()
    for line in output.decode(errors="replace").splitlines():
        if line.startswith(_MARK):
            answer, raised = json.loads(line.removeprefix(_MARK))
            if raised:
                raise RecipeError(raised["what"], where=f"{raised['where']} ({where})", fix=raised["fix"])
            return answer
    log = errors.decode(errors="replace").strip().splitlines()
    last = next((line for line in reversed(log) if not line.startswith(PROGRESS)), f"exit code {process.returncode}")
    raise RecipeError(f"its process ended without an answer: {last}", where=where, fix=fix)


def _last_step(errors: bytes) -> str:
    lines = errors.decode(errors="replace").splitlines()
    return next((line for line in reversed(lines) if line.startswith(PROGRESS)), "starting")


def main() -> None:
    """Answer `ask`; prints of the function go to standard error."""
    function, arguments = pickle.load(sys.stdin.buffer)
    standard_output, sys.stdout = sys.stdout, sys.stderr
    try:
        answer = [function(*arguments), None]
    except RecipeError as error:
        answer = [None, {"what": error.what, "where": error.where, "fix": error.fix}]
    print(_MARK + json.dumps(answer), file=standard_output, flush=True)
