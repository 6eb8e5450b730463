"""Sandbox Fusion, the service that verl's documentation names for many programs at once: a client for its run_code.

One request per program and kind: calls go in together, standard input needs one request per test. As in `sandbox`,
requests with the program hold no expected answers; what decides its asserts goes in with a request of its own.
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

PARTS = ("values", "calls")  # of `sandboxed`
PAUSES_S = (1.0, 4.0, 10.0)  # before each further attempt, where the service is busy or away
GRACE_S = 20.0  # for the service's own queue
FAILED = {"TimeLimitExceeded": "timeout", "MemoryLimitExceeded": "memory_limit", "OutputLimitExceeded": "output_limit"}

MAIN = """
import sys
for name, text in {parts!r}:
    module = sys.modules[name] = type(sys)(name)
    exec(text, module.__dict__)
out, inf, nan = sys.stdout, float("inf"), float("nan")
sys.stdout = sys.stderr
module.{function}(*{arguments!r}, lambda line: print({mark!r} + line, file=out, flush=True))
"""


class FusionError(RuntimeError):
    """The service did not answer, or not with what it documents."""


def run(
    url: str, kind: str, program: str, tests: list[Any], limits: Any, decisions: list[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """The same as `sandbox.run`, on a service: `url` is its run_code's, such as http://sandbox:8080/run_code.

    The status is "sandbox_error" for every test that the service gave no result for.
    """
    if kind != "script":
        lines, status = _lines(url, "run", (program, "program.py", tests), limits)
        results = [sandbox.called(line) if kind == "calls" else {"line": line} for line in lines[: len(tests)]]
        results += [{"status": status}] * (len(tests) - len(results))
        return results if kind == "calls" else _decided(url, results, decisions or [], limits)
    results, used = [], 0.0
    for test in tests:
        if used > limits.total_wall_s:
            results.append({"status": "timeout"})
            continue
        began = time.monotonic()
        status, output = _execute(url, program, test, limits.wall_s, limits)
        used += time.monotonic() - began
        results.append({"status": status, "output": output[: limits.output_bytes]})
    return results


def _decided(url: str, results: list[Any], decisions: list[dict[str, Any]], limits: Any) -> list[dict[str, Any]]:
    """Asserts over what the program returned: in a request of their own, so that the program knows nothing of it."""
    ran = [at for at, result in enumerate(results) if result.get("line", "").startswith("ran ")]
    pairs = [(decisions[at], results[at]["line"][4:]) for at in ran]
    lines, status = _lines(url, "decide", (pairs,), limits) if pairs else ([], "")
    for at, line in zip(ran, lines, strict=False):
        results[at] = sandbox.decided(line)
    for at in ran[len(lines) :]:
        results[at] = {"status": status}
    return [result if "status" in result else sandbox.called(result["line"]) for result in results]


def _lines(url: str, function: str, arguments: tuple[Any, ...], limits: Any) -> tuple[list[str], str]:
    """What a function of `sandboxed/calls.py` reports there, and the status of what it did not come to.

    All calls share one process; where one of them ends it, it has failed, and so have those behind it.
    """
    mark = secrets.token_hex(8)  # so that what the program prints is not taken for a report by accident
    parts = [(part, (sandbox.SANDBOXED / f"{part}.py").read_text(encoding="utf-8")) for part in PARTS]
    code = MAIN.format(parts=parts, function=function, arguments=arguments, mark=mark)
    status, output = _execute(url, code, "", limits.total_s, limits)
    lines = [line[len(mark) :] for line in output.split("\n") if line.startswith(mark)]
    return lines, status if status != "ran" else "runtime_error"


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
