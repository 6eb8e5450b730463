"""Sandbox Fusion, the service that verl's documentation names for many programs at once: a client for its run_code.

Standard input needs one request per test; calls go in together. As in `sandbox`, requests hold no expected answers.
"""

from __future__ import annotations

import http.client
import json
import secrets
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from . import sandbox

PAUSES_S = (1.0, 4.0, 10.0)  # before each further attempt, where the service is busy or away
GRACE_S = 20.0  # for the service's own queue
FAILED = {"TimeLimitExceeded": "timeout", "MemoryLimitExceeded": "memory_limit", "OutputLimitExceeded": "output_limit"}

NO_ASSERTS = (
    "asserts cannot be judged on Sandbox Fusion: a service has no second process that the program cannot reach; give "
    "these tests as fn_name, inputs and outputs, or run programs under bubblewrap, without sandbox_fusion_url"
)
MAIN = """
import sys
talk = sys.modules["talk"] = type(sys)("talk")
exec({talk!r}, talk.__dict__)
out = sys.stdout
server = talk.Server(lambda line: print("\\n" + {mark!r} + line, file=out, flush=True))
server.run({program!r}, "program.py", {calls!r})
"""


class FusionError(RuntimeError):
    """The service did not answer, or not with what it documents."""


def run(url: str, kind: str, program: str, tests: list[Any], limits: Any) -> list[dict[str, str]]:
    """Do as `sandbox.run` does, on a service: `url` is its run_code's, such as http://sandbox:8080/run_code.

    The status is "sandbox_error" for every test that the service gave no result for.

    Raises:
        FusionError: these are asserts; `dispatch.check_sources` says so before the start.
    """
    if kind == "asserts":
        raise FusionError(NO_ASSERTS)
    results: list[dict[str, str]] = []
    used = 0.0
    while len(results) < len(tests):
        if used > limits.total_wall_s:
            results.append({"status": "timeout", "output": ""})
            continue
        began = time.monotonic()
        if kind == "script":
            results.append(_result(_execute(url, program, tests[len(results)], limits.wall_s, limits), limits))
        else:
            results += _calls(url, program, tests[len(results) :], limits)
        used += time.monotonic() - began
    return results


def _result(answer: tuple[str, str], limits: Any) -> dict[str, str]:
    return {"status": answer[0], "output": answer[1][: limits.output_bytes]}


def _calls(url: str, program: str, calls: list[str], limits: Any) -> list[dict[str, str]]:
    """Return the results of calls up to the first that ended the program, and of all where it ended before."""
    mark = secrets.token_hex(8)  # so that what the program prints is not taken for an answer by accident
    talk = (sandbox.SANDBOXED / "talk.py").read_text(encoding="utf-8")
    code = MAIN.format(talk=talk, program=program, calls=calls, mark=mark)
    status, output = _execute(url, code, "", limits.total_s, limits)
    loaded, *lines = [line[len(mark) :] for line in output.split("\n") if line.startswith(mark)] or [""]
    ended = [{"status": "runtime_error" if status == "ran" else status, "output": ""}]
    if not loaded:
        return ended * len(calls)
    return [*(_result(("ran", line), limits) for line in lines[: len(calls)]), *ended][: len(calls)]


def _execute(url: str, code: str, stdin: str, seconds: float, limits: Any) -> tuple[str, str]:
    """(status, standard output) of one execution."""
    request = {
        "code": code,
        "stdin": stdin,
        "language": "python",
        "compile_timeout": seconds,
        "run_timeout": seconds,
        "memory_limit_MB": limits.memory_bytes >> 20,
        "files": {},
        "fetch_files": [],
    }
    try:
        answer = post(url, request, seconds + GRACE_S)
    except FusionError:
        return "sandbox_error", ""
    ran = answer.get("run_result") or {}
    output = str(ran.get("stdout") or "")
    if answer.get("status") == "Success":
        return "ran", output
    if answer.get("status") == "SandboxError" or not ran:
        return "sandbox_error", ""
    wrong = "syntax_error" if "SyntaxError" in str(ran.get("stderr") or "") else "runtime_error"
    return FAILED.get(str(ran.get("status")), wrong), output


def post(url: str, request: dict[str, Any], seconds: float, pauses: tuple[float, ...] = PAUSES_S) -> dict[str, Any]:
    """The service's answer; tried again where it is busy (429, 502 to 504) or cannot be reached.

    Raises:
        FusionError: no usable answer after the last attempt.
    """
    body = json.dumps(request).encode()
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    why = ""
    for pause in (*pauses, None):
        try:
            sent = urllib.request.Request(url, data=body, headers=headers, method="POST")
            with urllib.request.urlopen(sent, timeout=seconds) as reply:
                answer = json.loads(reply.read())
            if isinstance(answer, dict):
                return answer
            raise FusionError(f"{url} answers with {type(answer).__name__}, not an object")
        except urllib.error.HTTPError as error:
            if error.code not in (429, 502, 503, 504):
                raise FusionError(f"{url} answers {error.code} {error.reason}") from error
            why = f"{error.code} {error.reason}"
        except ValueError as error:
            raise FusionError(f"{url} answers with something that is no JSON") from error
        except (OSError, http.client.HTTPException) as error:
            why = str(getattr(error, "reason", error))
        if pause is not None:
            time.sleep(pause)
    raise FusionError(f"{url} gives no answer: {why}")


def check(url: str) -> None:
    """Run one program there. Raises FusionError: with what the service answered."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise FusionError(f"{url!r} is no address; give the whole one, such as http://127.0.0.1:8080/run_code")
    request = {"code": "print(6 * 7)", "stdin": "", "language": "python", "run_timeout": 10, "compile_timeout": 10}
    answer = post(url, request, 30.0, pauses=())
    output = str((answer.get("run_result") or {}).get("stdout") or "").strip()
    if answer.get("status") != "Success" or output != "42":
        raise FusionError(f"{url} does not run a program: {str(answer)[:200]}")
