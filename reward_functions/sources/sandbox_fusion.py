"""Sandbox Fusion, the service that verl's documentation names for many programs at once: a client for its run_code.

Standard input needs one request per test. Tests that call a program go in together, in turns with the program: see
`_tests`. As in `sandbox`, requests with the program hold no expected answers.
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

MOST_TURNS = 40  # calls of the program that a test can make, one after the other
PAUSES_S = (1.0, 4.0, 10.0)  # before each further attempt, where the service is busy or away
GRACE_S = 20.0  # for the service's own queue
FAILED = {"TimeLimitExceeded": "timeout", "MemoryLimitExceeded": "memory_limit", "OutputLimitExceeded": "output_limit"}

MAIN = """
import json, sys
for name, text in {parts!r}:
    module = sys.modules[name] = type(sys)(name)
    exec(text, module.__dict__)
out = sys.stdout
module.replay(lambda line: print({mark!r} + line, file=out, flush=True), *json.loads({arguments!r}))
"""


class FusionError(RuntimeError):
    """The service did not answer, or not with what it documents."""


def run(
    url: str, kind: str, program: str, tests: list[Any], limits: Any, names: list[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """The same as `sandbox.run`, on a service: `url` is its run_code's, such as http://sandbox:8080/run_code.

    The status is "sandbox_error" for every test that the service gave no result for.
    """
    if kind != "script":
        return _tests(url, program, tests, names, limits)
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


def _tests(url: str, program: str, tests: list[Any], names: Any, limits: Any) -> list[dict[str, Any]]:
    """Tests in turns, since a service has no conversations: one request executes all tests as far as the answers go,
    the next one has the program answer what they then ask, from the start."""
    answers: list[list[str]] = [[] for _ in tests]
    asked: list[list[str]] = [[] for _ in tests]
    statuses, flags = [""] * len(tests), ""
    for _ in range(MOST_TURNS):
        open_ = [at for at, status in enumerate(statuses) if not status]
        if not open_:
            break
        given = [[tests[at] for at in open_], [names[at] for at in open_], [answers[at] for at in open_]]
        lines, status = _lines(url, ("values", "same", "served", "judged"), given, limits)
        if not flags and not lines:
            statuses = [status if status == "sandbox_error" else "gold_unparsable"] * len(tests)
            break
        flags = flags or lines[0]
        for at, line in zip(open_, [*lines[1:], *[f"status {status}"] * len(open_)], strict=False):
            what, _, rest = line.partition(" ")
            if what == "status":
                statuses[at] = rest
            else:
                asked[at].append(rest)
        open_ = [at for at, each in enumerate(statuses) if not each]
        if open_:
            given = [program, [asked[at] for at in open_]]
            lines, status = _lines(url, ("values", "served"), given, limits)
            for at, line in zip(open_, [*lines, *[""] * len(open_)], strict=False):
                answers[at].append(line)
                statuses[at] = "" if line.startswith("[") else (line or status)
    return sandbox.results_of(flags, [status or "timeout" for status in statuses])


def _lines(url: str, parts: tuple[str, ...], arguments: Any, limits: Any) -> tuple[list[str], str]:
    """What `replay` of the last part reports there, and the status of what it did not come to."""
    mark = secrets.token_hex(8)  # so that what the program prints is not taken for a report by accident
    sources = [(part, (sandbox.SANDBOXED / f"{part}.py").read_text(encoding="utf-8")) for part in parts]
    code = MAIN.format(parts=sources, arguments=json.dumps(arguments), mark=mark)
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
