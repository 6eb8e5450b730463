"""Sandbox Fusion, against a server that answers as the service documents: run_code, its statuses, and its failures."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from recipes.data.rewards import load_reward

dispatch = load_reward("reward_functions/dispatch.py")
fusion = dispatch.sandbox_fusion


class Service(ThreadingHTTPServer):
    """Answers with what is next in `answers` (a dict, or an HTTP status), and then by really running the code."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests, self.answers = [], []
        self.url = f"http://127.0.0.1:{self.server_port}/run_code"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(request)
        answer = self.server.answers.pop(0) if self.server.answers else run(request)
        self.send_response(answer if isinstance(answer, int) else 200)
        self.end_headers()
        self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    def log_message(self, *arguments: object) -> None:
        pass


def run(request: dict) -> dict:
    """The programs of this file are harmless."""
    command = [sys.executable, "-I", "-S", "-c", request["code"]]
    done = subprocess.run(command, input=request["stdin"], capture_output=True, text=True, check=False)
    return answered("Success" if done.returncode == 0 else "Failed", "Finished", done.stdout, done.stderr)


def answered(status: str, ran: str, stdout: str = "", stderr: str = "") -> dict:
    return {"status": status, "run_result": {"status": ran, "stdout": stdout, "stderr": stderr, "return_code": 0}}


@pytest.fixture
def service(monkeypatch):
    monkeypatch.setattr(fusion.post, "__defaults__", ((0.01, 0.01),))
    with Service() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


ONE_TEST = {"inputs": ["1"], "outputs": ["2"]}
DOUBLE = "```python\nprint(int(input()) * 2)\n```"
EXITS = "```python\ndef f(x):\n    if x == 3: import os; os._exit(0)\n    return [x]\n```"
FUNCTION = (
    "```python\nprint('ran [9]')\ndef f(x):\n    print('ran [9]')\n    if x == 3: raise SystemExit\n    return [x]\n```"
)


@pytest.mark.parametrize(
    ("response", "truth", "share", "reason"),
    [
        (DOUBLE, {"inputs": ["1", "2"], "outputs": ["2", "4"]}, 1.0, "correct"),
        (DOUBLE, {"inputs": ["1", "x"], "outputs": ["2", "4"]}, 0.5, "partial"),
        (FUNCTION, {"fn_name": "f", "inputs": [[1], [3], [2]], "outputs": [[1], [3], [2]]}, 2 / 3, "partial"),
        (EXITS, {"fn_name": "f", "inputs": [[1], [3], [2]], "outputs": [[1], [3], [2]]}, 2 / 3, "partial"),
        ("```\ndef f(:\n```", {"fn_name": "f", "inputs": [[1]], "outputs": [1]}, 0.0, "syntax_error"),
    ],
)
def test_the_same_verdicts_as_in_the_sandbox(service, response, truth, share, reason):
    result = dispatch.compute_score("code", response, truth, sandbox_fusion_url=service.url)
    assert (result["score"], result["reason"]) == (share, reason)


def test_requests_hold_no_expected_answer(service):
    for truth in (
        {"fn_name": "f", "inputs": [[1]], "outputs": ["the expected answer"]},
        {"inputs": ["1"], "outputs": ["the expected answer"]},
    ):
        dispatch.compute_score("code", DOUBLE, truth, sandbox_fusion_url=service.url, limits={"memory_bytes": 64 << 20})
    calls, script = service.requests
    assert "the expected answer" not in json.dumps([calls, script])
    assert (script["memory_limit_MB"], script["language"]) == (64, "python")


def test_asserts_are_refused_before_the_start(service):
    truth = {"asserts": ["assert f(1) == [1]"]}
    problems = dispatch.check_sources([("code", truth), ("code", ONE_TEST)], sandbox_fusion_url=service.url)
    assert [problem for problem in problems if "fn_name" in problem] == problems[:1]
    assert problems[0].startswith("row 1 (code)")
    with pytest.raises(RuntimeError):
        dispatch.compute_score("code", FUNCTION, truth, sandbox_fusion_url=service.url)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (answered("Failed", "TimeLimitExceeded"), "timeout"),
        (answered("Failed", "Finished", "", "SyntaxError: bad"), "syntax_error"),
        (answered("SandboxError", "Error"), "sandbox_error"),
        (b"<html>", "sandbox_error"),
    ],
)
def test_what_the_service_can_answer(service, answer, reason):
    service.answers = [answer]
    result = dispatch.compute_score("code", DOUBLE, ONE_TEST, sandbox_fusion_url=service.url)
    assert (result["score"], result["reason"]) == (0.0, reason)
